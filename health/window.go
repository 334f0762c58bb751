package health

import (
	"math"
	"math/bits"
	"strconv"
	"sync"
	"time"
)

// Window counts the calls of the last five minutes with their error rate and
// latencies. The zero value is ready; it is safe for concurrent use. An unused
// Window is small, a used one holds about 14 kB, however many calls it sees.
type Window struct {
	mu    sync.Mutex
	start time.Time // of slot number 0
	slots *[slotCount]slot
}

const (
	slotTime  = 10 * time.Second
	slotCount = 30
)

// slot is what happened in ten seconds.
type slot struct {
	number        int64 // since start
	calls, failed uint32
	took          [bucketCount]uint16 // calls by bucketOf; a full bucket stays full
}

// WindowSnapshot is a Window at one moment, as the status document shows it.
type WindowSnapshot struct {
	Seconds   int     `json:"seconds"` // how far back it looks
	Calls     int     `json:"calls"`
	ErrorRate float64 `json:"error_rate"`
	P50MS     float64 `json:"p50_ms"` // within 7 %
	P95MS     float64 `json:"p95_ms"`
}

// Add counts one call.
func (w *Window) Add(failed bool, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots == nil {
		w.start, w.slots = time.Now(), new([slotCount]slot)
	}
	n := int64(time.Since(w.start) / slotTime)
	s := &w.slots[n%slotCount]
	if s.number != n {
		*s = slot{number: n}
	}
	s.calls++
	if failed {
		s.failed++
	}
	if b := &s.took[bucketOf(took)]; *b < math.MaxUint16 {
		*b++
	}
}

// Snapshot sums up the last five minutes, to the slot.
func (w *Window) Snapshot() WindowSnapshot {
	sum := WindowSnapshot{Seconds: int(slotCount * slotTime / time.Second)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots == nil {
		return sum
	}
	var took [bucketCount]int
	failed, timed := 0, 0
	now := int64(time.Since(w.start) / slotTime)
	for i := range w.slots {
		s := &w.slots[i]
		if now-s.number >= slotCount {
			continue
		}
		sum.Calls += int(s.calls)
		failed += int(s.failed)
		for b, n := range s.took {
			took[b] += int(n)
			timed += int(n)
		}
	}
	if sum.Calls > 0 {
		sum.ErrorRate = math.Round(float64(failed)/float64(sum.Calls)*1e4) / 1e4
		sum.P50MS = percentile(&took, timed, 50)
		sum.P95MS = percentile(&took, timed, 95)
	}
	return sum
}

// Latencies are counted in microseconds on a scale of eight equal buckets per
// power of two: the middle of a bucket is within 1/16 of all it holds.
const (
	subBits     = 3
	octaves     = 27 // up to 2^30 µs, 18 minutes: longer than any call
	bucketCount = (octaves + 1) << subBits
)

func bucketOf(took time.Duration) int {
	us := uint64(max(0, took.Microseconds()))
	if us < 1<<subBits {
		return int(us)
	}
	shift := bits.Len64(us) - 1 - subBits
	return min(shift<<subBits+int(us>>shift), bucketCount-1)
}

// middleOf returns the middle of a bucket in microseconds.
func middleOf(bucket int) float64 {
	shift := max(0, bucket>>subBits-1)
	low := (bucket - shift<<subBits) << shift
	return float64(low) + float64(int(1)<<shift)/2
}

// percentile returns the latency, in milliseconds to three digits, that p
// percent of n calls did not exceed.
func percentile(took *[bucketCount]int, n, p int) float64 {
	rank := (n*p + 99) / 100
	for b, count := range took {
		if rank -= count; rank <= 0 {
			ms, _ := strconv.ParseFloat(strconv.FormatFloat(middleOf(b)/1000, 'g', 3, 64), 64)
			return ms
		}
	}
	return 0
}
