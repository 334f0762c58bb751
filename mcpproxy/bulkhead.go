package mcpproxy

import (
	"slices"
	"sync"
)

// bulkhead bounds the calls that an upstream has at a time and those that wait
// for a place, first come, first served.
type bulkhead struct {
	limit, room int

	mu     sync.Mutex
	active int
	queue  []*call
}

// place is where a call stands at the bulkhead.
type place int

const (
	outside place = iota
	waiting
	inside
)

// enter gives k a place, if only in the queue; outside: there is none left. The
// call's lock is held.
func (b *bulkhead) enter(k *call) place {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case k.place != outside:
	case b.active < b.limit:
		b.active++
		k.place = inside
	case len(b.queue) < b.room:
		b.queue = append(b.queue, k)
		k.place = waiting
	}
	return k.place
}

// leave gives the place of k back and returns the call that takes it, nil if
// none does. It may be called more than once.
func (b *bulkhead) leave(k *call) (next *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case k.place == waiting:
		b.queue = slices.DeleteFunc(b.queue, func(other *call) bool { return other == k })
	case k.place == inside && len(b.queue) > 0:
		next = b.queue[0]
		b.queue = slices.Delete(b.queue, 0, 1)
		next.place = inside
	case k.place == inside:
		b.active--
	}
	k.place = outside
	return next
}

// load is how many calls are inside and how many wait.
func (b *bulkhead) load() (active, queued int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.active, len(b.queue)
}
