package health_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/agentarmor/agentarmor/health"
)

// TestWindow has one call per second, one in three failed, for ten minutes.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w health.Window
		if diff := cmp.Diff(health.WindowSnapshot{Seconds: 300}, w.Snapshot()); diff != "" {
			t.Error(diff)
		}
		for i := range 600 {
			w.Add(i%3 == 0, 10*time.Millisecond)
			time.Sleep(time.Second)
		}
		want := health.WindowSnapshot{Seconds: 300, Calls: 290, ErrorRate: 0.331, P50MS: 9.73, P95MS: 9.73}
		if diff := cmp.Diff(want, w.Snapshot()); diff != "" {
			t.Error(diff)
		}
		for range 100 {
			w.Add(false, time.Second)
		}
		if s := w.Snapshot(); s.Calls != 390 || math.Abs(s.P50MS-10) > 1 || math.Abs(s.P95MS-1000) > 70 {
			t.Errorf("with 100 slow calls: %+v", s)
		}
		time.Sleep(290 * time.Second) // the last slot is still in
		if s := w.Snapshot(); s.Calls != 100 || s.ErrorRate != 0 || s.P50MS < 900 {
			t.Errorf("290 s later: %+v", s)
		}
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(health.WindowSnapshot{Seconds: 300}, w.Snapshot()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(24 * time.Hour)
		w.Add(true, 0)
		if s := w.Snapshot(); s.Calls != 1 || s.ErrorRate != 1 {
			t.Errorf("a day later: %+v", s)
		}
	})
}

// TestWindowPercentiles compares with sorting, over latencies of every size.
func TestWindowPercentiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var w health.Window
		scale := math.Exp(rng.Float64() * math.Log(float64(10*time.Minute)))
		all := make([]time.Duration, 1+rng.IntN(200))
		for i := range all {
			all[i] = min(10*time.Minute, time.Duration(scale*rng.ExpFloat64()))
			w.Add(false, all[i])
		}
		slices.Sort(all)
		s := w.Snapshot()
		for p, got := range map[int]float64{50: s.P50MS, 95: s.P95MS} {
			want := float64(all[(len(all)*p+99)/100-1]) / float64(time.Millisecond)
			if math.Abs(got-want) > 0.07*want+0.0005 { // half a microsecond
				t.Errorf("p%d of %d calls is %v ms, want %v", p, len(all), got, want)
			}
		}
	}
}

func TestWindowExtremes(t *testing.T) {
	var w health.Window
	w.Add(false, -time.Second)
	w.Add(false, -time.Second)
	w.Add(false, math.MaxInt64)
	if s := w.Snapshot(); s.Calls != 3 || s.P50MS > 0.001 || s.P95MS < 15*60_000 || s.P95MS > 20*60_000 {
		t.Errorf("%+v", s)
	}
}

// TestWindowFull has more calls in a slot than a bucket counts.
func TestWindowFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w health.Window
		const calls = 2 * (math.MaxUint16 + 1)
		for i := range calls {
			w.Add(i%4 == 0, time.Millisecond)
		}
		if s := w.Snapshot(); s.Calls != calls || s.ErrorRate != 0.25 || math.Abs(s.P50MS-1) > 0.07 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWindowMemory(t *testing.T) {
	if n := unsafe.Sizeof(health.Window{}); n > 64 {
		t.Errorf("an unused window has %d bytes", n)
	}
	var w health.Window
	bytes := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			var w health.Window
			w.Add(false, 0)
		}
	}).AllocedBytesPerOp()
	if bytes > 16<<10 {
		t.Errorf("a used window has %d bytes", bytes)
	}
	synctest.Test(t, func(t *testing.T) {
		w.Add(false, 0)
		if n := testing.AllocsPerRun(1000, func() {
			w.Add(true, time.Millisecond)
			time.Sleep(time.Second)
		}); n >= 1 {
			t.Errorf("%v allocations per Add", n)
		}
	})
}

func TestWindowConcurrent(t *testing.T) {
	var w health.Window
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := range 1000 {
				w.Add(i%2 == 0, time.Duration(i)*time.Millisecond)
				if i%100 == 0 {
					w.Snapshot()
				}
			}
		})
	}
	callers.Wait()
	if s := w.Snapshot(); s.Calls != 8000 || s.ErrorRate != 0.5 {
		t.Errorf("%+v", s)
	}
}

func TestWindowSnapshotJSON(t *testing.T) {
	b, err := json.Marshal(health.WindowSnapshot{Seconds: 300, Calls: 41, ErrorRate: 0.07, P50MS: 120, P95MS: 840})
	if want := `{"seconds":300,"calls":41,"error_rate":0.07,"p50_ms":120,"p95_ms":840}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

func BenchmarkWindowAdd(b *testing.B) {
	var w health.Window
	b.ReportAllocs()
	for b.Loop() {
		w.Add(false, 3*time.Millisecond)
	}
}

func BenchmarkWindowSnapshot(b *testing.B) {
	var w health.Window
	w.Add(false, 3*time.Millisecond)
	for b.Loop() {
		w.Snapshot()
	}
}
