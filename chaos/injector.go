package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Injector holds the active faults and decides which calls they hit. Nil is one
// that is off.
type Injector struct {
	o Options

	mu       sync.Mutex
	last     int // number of the latest fault
	closed   bool
	watchers []Watcher
	active   []*fault

	now atomic.Pointer[[]*fault] // active, those that only delay first; nil: none
}

// DefaultMaxTTL is the longest time to live of a fault, unless the options say otherwise.
const DefaultMaxTTL = 10 * time.Minute

// MaxActive is the most faults that are active at a time: every request is asked about each.
const MaxActive = 100

// Options of an [Injector].
type Options struct {
	Enabled   bool              // false: Inject refuses everything
	Seed      int64             // 0: a random one
	MaxTTL    time.Duration     // 0: DefaultMaxTTL
	Scenarios map[string][]Spec // beside those of the package, which they override
	Watcher                     // the first to watch
}

// Watcher knows the targets there are, or wants to know what happens. Nil funcs
// are left out. They are called without a lock and must not block.
type Watcher struct {
	Targets  func() []string // all that there are now, most important first
	OnChange func(Change)
	OnHit    func(Hit)
}

// Change is the begin or end of a fault.
type Change struct {
	Active
	Kind ChangeKind
}

// ChangeKind says why a fault has begun or ended.
type ChangeKind string

// The kinds of changes.
const (
	Began   ChangeKind = "injected"
	Cleared ChangeKind = "cleared"
	Expired ChangeKind = "expired" // its time to live is over
)

// Hit is one call that a fault acts on.
type Hit struct {
	Injected
	Context context.Context // of the call; may be nil
	Target  string          // with the tool
}

// New returns an injector without faults.
func New(o Options) *Injector {
	o.Seed = cmp.Or(o.Seed, 1+rand.Int64N(1<<31))
	o.MaxTTL = cmp.Or(o.MaxTTL, DefaultMaxTTL)
	return &Injector{o: o, watchers: []Watcher{o.Watcher}}
}

// Watch adds someone who knows targets or wants to know what happens.
func (i *Injector) Watch(w Watcher) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watchers = append(slices.Clip(i.watchers), w)
}

// Enabled tells whether faults can be injected at all.
func (i *Injector) Enabled() bool { return i != nil && i.o.Enabled }

// Seed is what the random sources of faults without one of their own derive from.
func (i *Injector) Seed() int64 { return i.o.Seed }

// MaxTTL is the longest time to live of a fault.
func (i *Injector) MaxTTL() time.Duration { return i.o.MaxTTL }

// ErrOff is the error of Inject while chaos is off.
var ErrOff = errors.New("chaos is off: set chaos.enabled in the configuration, or start with --chaos")

// Inject begins a fault and returns it as it is now. It refuses one whose
// pattern matches no target, if the targets are known.
func (i *Injector) Inject(s Spec) (Active, error) {
	if !i.Enabled() {
		return Active{}, ErrOff
	}
	if err := s.Validate(i.o.MaxTTL); err != nil {
		return Active{}, err
	}
	targets, err := i.Preview(s.Target)
	if err != nil {
		return Active{}, err
	}
	f := &fault{spec: s, kind: kinds[s.Fault], since: time.Now(), targets: targets, ended: make(chan struct{}), seen: map[string]uint64{}}
	f.act = f.kind.start(s)
	i.mu.Lock()
	if i.closed {
		i.mu.Unlock()
		return Active{}, errors.New("the endpoint is closing")
	}
	if len(i.active) >= MaxActive {
		i.mu.Unlock()
		return Active{}, fmt.Errorf("%d faults are active, which is the most: clear some", MaxActive)
	}
	i.last++
	f.id = fmt.Sprintf("f%d", i.last)
	f.seed = cmp.Or(s.Seed, i.o.Seed+int64(i.last)-1, 1)
	f.timer = time.AfterFunc(time.Duration(s.TTL), func() { i.end([]*fault{f}, Expired) })
	i.active = append(slices.Clip(i.active), f)
	i.publishLocked()
	i.mu.Unlock()
	now := f.now()
	i.changed(Change{now, Began})
	return now, nil
}

// Preview returns the targets that a pattern matches now, nil if no target is
// known. The error says that it matches none.
func (i *Injector) Preview(pattern string) ([]string, error) {
	if err := checkPattern(pattern); err != nil {
		return nil, err
	}
	var found []string
	all := i.Targets()
	for _, t := range all {
		if matches(pattern, t) {
			found = append(found, t)
		}
	}
	if all != nil && found == nil {
		if len(all) == 0 {
			return nil, fmt.Errorf("unknown target: %q matches nothing: there is nothing to break", pattern)
		}
		return nil, fmt.Errorf("unknown target: %q matches none of %s", pattern, some(all))
	}
	return found, nil
}

// Targets are all that there are now; nil: nobody knows.
func (i *Injector) Targets() []string {
	var all []string
	known := false
	for _, w := range i.watching() {
		if w.Targets != nil {
			all = append(all, w.Targets()...)
			known = true
		}
	}
	if known && all == nil {
		return []string{}
	}
	return all
}

// some names the first few.
func some(targets []string) string {
	const most = 20
	if n := len(targets); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(targets[:most], ", "), n-most)
	}
	return strings.Join(targets, ", ")
}

// Clear ends faults: the one with an id, those of a target or pattern, or "all".
// It returns them as they were last; the error says that there are none.
func (i *Injector) Clear(which string) ([]Active, error) {
	if !i.Enabled() {
		return nil, ErrOff
	}
	var found []*fault
	names := []string{}
	for _, f := range i.faults() {
		names = append(names, f.id+" ("+f.spec.Target+")")
		if which == "all" || which == f.id || which == f.spec.Target || matches(which, f.spec.Target) {
			found = append(found, f)
		}
	}
	if found == nil && which != "all" {
		if len(names) == 0 {
			return nil, fmt.Errorf("no fault %q: none is active", which)
		}
		return nil, fmt.Errorf("no fault %q: active are %s", which, some(names))
	}
	return i.end(found, Cleared), nil
}

// List returns the active faults, oldest first.
func (i *Injector) List() []Active {
	list := []Active{}
	if i != nil {
		for _, f := range i.faults() {
			list = append(list, f.now())
		}
	}
	return list
}

// Close ends all faults; none can be injected any more.
func (i *Injector) Close() {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.closed = true
	all := i.active
	i.mu.Unlock()
	i.end(all, Cleared)
}

// Decide says what becomes of one call.
func (i *Injector) Decide(c Call) (d Decision) {
	if i == nil {
		return d
	}
	active := i.now.Load()
	if active == nil {
		return d
	}
	var hits []*fault
	for _, f := range *active {
		next, hit := f.decide(c)
		if !hit {
			continue
		}
		hits = append(hits, f)
		if d.add(next, f) {
			break
		}
	}
	for _, f := range hits {
		for _, w := range i.watching() {
			if w.OnHit != nil {
				w.OnHit(Hit{Injected: Injected{ID: f.id, Fault: f.spec.Fault}, Context: c.Context, Target: c.full()})
			}
		}
	}
	return d
}

// Any tells whether a fault is active.
func (i *Injector) Any() bool { return i != nil && i.now.Load() != nil }

// end ends those of the faults that are still active.
func (i *Injector) end(which []*fault, why ChangeKind) []Active {
	i.mu.Lock()
	var gone []*fault
	i.active = slices.DeleteFunc(slices.Clone(i.active), func(f *fault) bool {
		ends := slices.Contains(which, f)
		if ends {
			gone = append(gone, f)
		}
		return ends
	})
	i.publishLocked()
	i.mu.Unlock()
	was := []Active{}
	for _, f := range gone {
		f.timer.Stop()
		close(f.ended)
		was = append(was, f.now())
		i.changed(Change{was[len(was)-1], why})
	}
	return was
}

// publishLocked shows Decide the active faults.
func (i *Injector) publishLocked() {
	if len(i.active) == 0 {
		i.now.Store(nil)
		return
	}
	order := slices.Clone(i.active)
	slices.SortStableFunc(order, func(a, b *fault) int { return cmp.Compare(rank(a), rank(b)) })
	i.now.Store(&order)
}

// rank puts what leaves room for other faults before them.
func rank(f *fault) int {
	if f.spec.Fault == Latency {
		return 0
	}
	return 1
}

func (i *Injector) faults() []*fault {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.active
}

func (i *Injector) watching() []Watcher {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.watchers
}

func (i *Injector) changed(c Change) {
	for _, w := range i.watching() {
		if w.OnChange != nil {
			w.OnChange(c)
		}
	}
}
