package health

import (
	"cmp"
	"context"
	"hash/fnv"
	"sync/atomic"
	"time"
)

// Prober asks again and again whether one thing works. A nil Prober is one that
// is not there yet: it is never due, and a kick does nothing.
type Prober struct {
	o    ProbeOptions
	kick chan struct{}
	next atomic.Pointer[time.Time]
}

// ProbeOptions are the settings of a Prober. Only Check is required. The
// functions are called by the goroutine of Run, one at a time.
type ProbeOptions struct {
	Name      string        // its hash spreads the first probes of many
	Every     time.Duration // from one probe's start to the next; 0: 30 s
	EveryDown time.Duration // the same while Down; 0: 5 s
	Timeout   time.Duration // of one probe, never more than the interval in force; 0: 5 s

	// Check is one probe. It must return when ctx ends; its panics are not caught.
	Check func(ctx context.Context) error
	// Down tells which interval is in force. It is asked before and after each
	// probe: who changes it in between calls Kick.
	Down func() bool
	// Skip tells that no probe is needed, because there is traffic. A probe that
	// was asked for with Kick is made anyway.
	Skip func() bool
	// Result is told of each probe that was made, but not of one that was cut
	// short by the end of Run's context.
	Result func(err error)
}

// NewProber returns a Prober; it does nothing before Run.
func NewProber(o ProbeOptions) *Prober {
	o.Every = cmp.Or(o.Every, 30*time.Second)
	o.EveryDown = cmp.Or(o.EveryDown, 5*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	return &Prober{o: o, kick: make(chan struct{}, 1)}
}

// Run probes until ctx ends, which cancels the probe under way. It must be
// called only once.
func (p *Prober) Run(ctx context.Context) {
	p.due(time.Now().Add(p.first()))
	timer := time.NewTimer(time.Until(p.Next()))
	defer timer.Stop()
	for {
		kicked := false
		select {
		case <-ctx.Done():
		case <-p.kick:
			kicked = true
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		start := time.Now()
		if kicked || p.o.Skip == nil || !p.o.Skip() {
			p.probe(ctx, start)
		}
		p.due(start.Add(p.interval()))
		timer.Reset(time.Until(p.Next()))
	}
}

func (p *Prober) probe(ctx context.Context, start time.Time) {
	interval := p.interval()
	p.due(start.Add(interval))
	limited, cancel := context.WithTimeout(ctx, min(p.o.Timeout, interval))
	defer cancel()
	err := p.o.Check(limited)
	if ctx.Err() == nil && p.o.Result != nil {
		p.o.Result(err)
	}
}

// Kick makes the next probe now; while one is under way, right after it. Any
// number of kicks before that is one. It never blocks.
func (p *Prober) Kick() {
	if p == nil {
		return
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Next returns when the next probe is due; zero before Run. It may be skipped.
func (p *Prober) Next() time.Time {
	if p == nil {
		return time.Time{}
	}
	if t := p.next.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (p *Prober) due(t time.Time) { p.next.Store(&t) }

func (p *Prober) interval() time.Duration {
	if p.o.Down != nil && p.o.Down() {
		return p.o.EveryDown
	}
	return p.o.Every
}

// first is the delay of the first probe: somewhere in the interval, always the
// same for a name.
func (p *Prober) first() time.Duration {
	h := fnv.New64a()
	h.Write([]byte(p.o.Name))
	return time.Duration(h.Sum64() % uint64(p.interval()))
}
