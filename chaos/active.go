package chaos

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"
)

// Active is a fault at one moment.
type Active struct {
	ID string `json:"id"`
	Spec
	Seed    int64     `json:"seed"`  // also if Spec has none: injecting the same with it gives the same faults
	Calls   int       `json:"calls"` // that matched
	Hits    int       `json:"hits"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Left    Duration  `json:"left"`
	Targets []string  `json:"targets,omitempty"` // that matched when it was injected; empty: not known
}

// Concerns tells whether a fault is about a server or provider, or a tool of it.
func (a Active) Concerns(target string) bool { return matches(serverOf(a.Target), target) }

// fault is an active fault.
type fault struct {
	id      string
	spec    Spec
	kind    kind
	seed    int64
	since   time.Time
	targets []string
	timer   *time.Timer
	ended   chan struct{}

	mu    sync.Mutex
	act   func(*rand.Rand, Call) Decision
	calls int
	hits  int
	seen  map[string]uint64 // calls by target
}

// decide says what the fault does to a call; hit is false if that is nothing.
func (f *fault) decide(c Call) (d Decision, hit bool) {
	if !f.kind.hits(c) || !f.meant(c) {
		return d, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	target := c.full()
	f.seen[target]++
	r := rand.New(rand.NewPCG(uint64(f.seed), hash(target)+f.seen[target]))
	lucky := r.Float64() >= f.spec.probability()
	if lucky || f.calls <= f.spec.After || f.spec.Count > 0 && f.hits >= f.spec.Count {
		return d, false
	}
	d = f.act(r, c)
	if d.Action == Pass && d.delays == nil {
		return d, false
	}
	f.hits++
	return d, true
}

// meant tells whether the pattern matches the call: a tool's calls by its own
// target and by that of its server.
func (f *fault) meant(c Call) bool {
	if matches(f.spec.Target, c.Target) || c.Op == ToolCall && matches(f.spec.Target, c.full()) {
		return true
	}
	return c.Op == ToolList && f.spec.Fault == SchemaDrift && matches(serverOf(f.spec.Target), c.Target)
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

func (f *fault) now() Active {
	f.mu.Lock()
	defer f.mu.Unlock()
	until := f.since.Add(time.Duration(f.spec.TTL))
	return Active{
		ID: f.id, Spec: f.spec, Seed: f.seed, Calls: f.calls, Hits: f.hits, Targets: f.targets,
		Since: f.since.UTC().Truncate(time.Millisecond), Until: until.UTC().Truncate(time.Millisecond), Left: Duration(max(0, time.Until(until)).Round(time.Millisecond)),
	}
}
