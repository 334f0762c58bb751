package event

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestSubscribersGetEventsInOrder(t *testing.T) {
	var b Bus
	b.Publish(Event{Text: "before"})
	one, two := b.Subscribe(10), b.Subscribe(10)
	for i := range 5 {
		b.Publish(Event{Kind: UpstreamState, Text: strconv.Itoa(i)})
	}
	one.Close()
	two.Close()
	for _, s := range []*Subscription{one, two} {
		n := 0
		for e := range s.C() {
			if e.Text != strconv.Itoa(n) || e.Seq != uint64(n+2) || e.Time.IsZero() {
				t.Errorf("event %d = %+v", n, e)
			}
			n++
		}
		if n != 5 || s.Dropped() != 0 {
			t.Errorf("got %d events, dropped %d", n, s.Dropped())
		}
	}
}

func TestFullSubscriberDropsAndCounts(t *testing.T) {
	var b Bus
	slow, quick := b.Subscribe(0), b.Subscribe(3)
	for range 3 {
		b.Publish(Event{})
	}
	if slow.Dropped() != 2 || quick.Dropped() != 0 {
		t.Errorf("dropped %d and %d, want 2 and 0", slow.Dropped(), quick.Dropped())
	}
	if e := <-slow.C(); e.Seq != 1 {
		t.Errorf("the kept event is %d, want the oldest", e.Seq)
	}
}

func TestCloseTwiceAndPublishAfter(t *testing.T) {
	var b Bus
	s := b.Subscribe(1)
	s.Close()
	s.Close()
	b.Publish(Event{})
	if _, ok := <-s.C(); ok {
		t.Error("an event after Close")
	}
}

func TestRecent(t *testing.T) {
	var b Bus
	if got := b.Recent(10); len(got) != 0 {
		t.Errorf("an empty bus remembers %v", got)
	}
	at := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for range History + 7 {
		b.Publish(Event{Time: at})
	}
	for _, tt := range []struct{ n, want int }{{-1, 0}, {0, 0}, {3, 3}, {History, History}, {2 * History, History}} {
		got := b.Recent(tt.n)
		if len(got) != tt.want {
			t.Errorf("Recent(%d) has %d events, want %d", tt.n, len(got), tt.want)
		}
		for i, e := range got {
			if want := uint64(History + 7 - tt.want + i + 1); e.Seq != want || !e.Time.Equal(at) {
				t.Fatalf("Recent(%d)[%d] = %+v, want event %d", tt.n, i, e, want)
			}
		}
	}
}

func TestFind(t *testing.T) {
	var b Bus
	if got := b.Find(Filter{}); got.Events == nil || len(got.Events) != 0 || got.LastSeq != 0 {
		t.Errorf("an empty bus finds %+v", got)
	}
	for _, e := range []Event{
		{Kind: UpstreamState, Upstream: "a"}, {Kind: BreakerChanged, Upstream: "a", Tool: "t"},
		{Kind: UpstreamState, Upstream: "b"}, {Kind: BreakerChanged, Upstream: "b", Tool: "t"}, {Kind: UpstreamState, Upstream: "a"},
	} {
		b.Publish(e)
	}
	for name, tt := range map[string]struct {
		f       Filter
		want    []uint64
		omitted int
	}{
		"all":      {Filter{}, []uint64{1, 2, 3, 4, 5}, 0},
		"upstream": {Filter{Upstream: "a"}, []uint64{1, 2, 5}, 0},
		"tool":     {Filter{Tool: "t"}, []uint64{2, 4}, 0},
		"kind":     {Filter{Kind: UpstreamState}, []uint64{1, 3, 5}, 0},
		"since":    {Filter{Since: 3}, []uint64{4, 5}, 0},
		"limit":    {Filter{Limit: 2}, []uint64{4, 5}, 3},
		"together": {Filter{Upstream: "a", Kind: UpstreamState, Since: 1, Limit: 1}, []uint64{5}, 0},
		"nothing":  {Filter{Upstream: "c"}, nil, 0},
	} {
		got := b.Find(tt.f)
		var seqs []uint64
		for _, e := range got.Events {
			seqs = append(seqs, e.Seq)
		}
		if !slices.Equal(seqs, tt.want) || got.Omitted != tt.omitted || got.LastSeq != 5 {
			t.Errorf("%s: %v, %d omitted, last %d", name, seqs, got.Omitted, got.LastSeq)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	var b Bus
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := b.Subscribe(4)
			for range 100 {
				b.Publish(Event{})
				b.Recent(5)
			}
			s.Close()
		})
	}
	wg.Wait()
	if got := b.Recent(1); got[0].Seq != 800 {
		t.Errorf("the last event is %d, want 800", got[0].Seq)
	}
}

func TestSubscribersGetTheKindsTheyWant(t *testing.T) {
	var b Bus
	s := b.Subscribe(1, Alert, LLMOutage)
	defer s.Close()
	for _, kind := range []Kind{CallFailed, Alert, CallFailed} {
		b.Publish(Event{Kind: kind})
	}
	if e := <-s.C(); e.Kind != Alert || s.Dropped() != 0 {
		t.Errorf("got %+v, dropped %d", e, s.Dropped())
	}
}
