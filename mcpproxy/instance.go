package mcpproxy

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// instance keeps one connection to one upstream up: it starts it in the
// background, lists what it offers, and starts it again for ever when it ends.
// Instances share nothing, so that a bad upstream never delays another.
//
// One goroutine, run, owns the connection and is the only one to change the
// state. Methods are safe for concurrent use; none but stop, await and renew
// waits for anything.
type instance struct {
	o       instanceOptions
	up      *upstream
	owner   *client // whose own instance it is; nil: shared
	tracker *health.Tracker
	log     *slog.Logger
	secrets secrets
	hopMeta []byte // _meta of our own requests to a modern server
	dial    func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error)
	ids     atomic.Uint64        // of requests to the upstream
	current atomic.Pointer[conn] // what live returns; stored under mu
	wake    chan struct{}        // ends the pause before the next start, or the rest after a 429
	resync  chan struct{}        // level or subscriptions have changed
	replan  chan struct{}        // a breaker has changed
	breaker *health.Breaker      // of the server plane; nil: switched off
	prober  atomic.Pointer[health.Prober]
	wg      sync.WaitGroup

	// Owned by run.
	era        era // what the server spoke last
	backoff    backoff
	fastExits  int  // in a row
	fastLosses int  // of sessions, in a row
	outage     bool // it has been down since it last served
	begun      bool // a process or session of it has been there
	noCanary   sync.Once
	fault      atomic.Pointer[string] // of chaos, that has made it fail last; nil, "": none

	mu          sync.Mutex
	asked       string // the fault of chaos that has made it ask for the rest it has; "": none
	phase       phase
	changed     chan struct{} // closed and replaced when phase or current change
	held        bool          // the pause is not to be cut short
	lastPoke    time.Time
	lastLoss    time.Time // of a connection with calls under way
	fallback    string    // "sse" once streamable HTTP was refused
	list        *listing  // the last good one, or the remembered one
	level       string
	modernLevel int // least rank + 1 that a modern request asked for; 0: none
	uris        []string
	last        *conn          // the newest connection, for the status
	lastStats   wire.PeerStats // of a connection that is gone
	cancel      context.CancelFunc
	stopCtx     context.Context // how long stop lets the upstream end by itself
}

// instanceOptions is what an instance is made of.
type instanceOptions struct {
	cfg        *UpstreamConfig
	limits     wire.Limits
	log        *slog.Logger
	hooks      hooks
	remembered *listing
	// capabilities returns the client capabilities to declare to a legacy
	// server, a raw JSON object. It may wait up to a second for a client.
	capabilities func(ctx context.Context) []byte
	version      string // of AgentArmor
	// preferLegacy tells the generation of the only client, if there is one
	// and it has spoken. It is asked after capabilities.
	preferLegacy func() (legacy, known bool)
	lists        bool // false: of one session, nothing is listed
}

// hooks is how an instance reports. No lock is held during a call; nil hooks
// are left out.
type hooks struct {
	// message takes every notification and request of the server, in stream
	// order, but ping, */list_changed and what belongs to our own listen
	// stream. via is the request on whose response stream it came, 0 where the
	// transport does not tell. It must not block.
	message func(c *conn, m wire.Message, via uint64)
	// listed takes a new complete listing; told are the lists whose change the
	// server announced.
	listed func(in *instance, l *listing, told kindSet)
	// state tells that the state was entered from another, or renewed.
	state func(in *instance, from health.State, now health.Snapshot)
	// lost tells that a connection is gone, after all its waiters have failed.
	lost func(c *conn)
}

// instanceStatus is a snapshot of an instance.
type instanceStatus struct {
	health.Snapshot
	Transport string          `json:"transport"`
	Protocol  string          `json:"protocol,omitempty"`
	Server    json.RawMessage `json:"server,omitempty"`
	Pid       int             `json:"pid"`
	Stderr    []string        `json:"stderr,omitempty"`
	Skipped   int             `json:"skipped_lines"`
}

// phase is what run is at.
type phase int

const (
	connecting phase = iota // also before start
	serving                 // current is the connection, nil while throttled
	ending                  // the connection is gone, and being cleared away
	pausing                 // until the next attempt
	ended                   // stopped or disabled
)

func newInstance(o instanceOptions) *instance {
	in := &instance{
		o:       o,
		wake:    make(chan struct{}, 1),
		resync:  make(chan struct{}, 1),
		replan:  make(chan struct{}, 1),
		changed: make(chan struct{}),
		list:    o.remembered,
		backoff: backoff{base: time.Second, max: 5 * time.Minute},
	}
	if !o.cfg.Stdio() { // an attempt costs little, and is the probe of what is down
		in.backoff.max = o.cfg.Probe.everyDown() * 5 / 6 // never more than that, jitter included
		in.backoff.base = min(in.backoff.base, in.backoff.max)
	}
	in.breaker = in.newBreaker()
	in.fillDefaults()
	in.dial = in.dialWire
	in.hopMeta = hopMetaJSON(o.version)
	in.secrets = secretsOf(o.cfg)
	in.era = rememberedEra(o.remembered)
	state := health.Starting
	if o.cfg.Disabled {
		state, in.phase = health.Disabled, ended
	}
	in.tracker = health.NewTracker(state, health.Options{OnChange: func(from health.State, now health.Snapshot) {
		in.o.hooks.state(in, from, now)
	}})
	return in
}

func (in *instance) fillDefaults() {
	in.log = cmp.Or(in.o.log, slog.New(slog.DiscardHandler)).With("upstream", in.o.cfg.Name)
	if in.o.capabilities == nil {
		in.o.capabilities = func(context.Context) []byte { return []byte("{}") }
	}
	h := &in.o.hooks
	if h.message == nil {
		h.message = func(*conn, wire.Message, uint64) {}
	}
	if h.listed == nil {
		h.listed = func(*instance, *listing, kindSet) {}
	}
	if h.state == nil {
		h.state = func(*instance, health.State, health.Snapshot) {}
	}
	if h.lost == nil {
		h.lost = func(*conn) {}
	}
}

// start begins to connect in the background, until stop. A disabled upstream
// stays as it is.
func (in *instance) start(ctx context.Context) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.phase == ended || in.cancel != nil || in.stopCtx != nil { // disabled, running, being stopped
		return
	}
	ctx, in.cancel = context.WithCancel(context.WithoutCancel(ctx))
	in.wg.Go(func() { in.run(ctx) })
}

// stop ends the connection for good and waits until nothing of it is left.
// The end of ctx kills what did not leave by itself.
func (in *instance) stop(ctx context.Context) {
	in.mu.Lock()
	cancel := in.cancel
	if in.stopCtx == nil {
		in.stopCtx = ctx
	}
	in.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	in.wg.Wait()
	in.enter(ended, nil)
}

// live is the connection to use: the handshake is done and nothing speaks
// against it. Else nil.
func (in *instance) live() *conn { return in.current.Load() }

// listing is the last good list of what the upstream offers, from an earlier
// run if need be; nil when there has never been one.
func (in *instance) listing() *listing {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.list
}

func (in *instance) setListing(l *listing) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.list = l
}

// await waits while an attempt to connect is under way. When none is, it asks
// for one; what cannot be tried before a later time is an *unavailable error at
// once.
func (in *instance) await(ctx context.Context) (*conn, error) {
	if c := in.live(); c != nil {
		return c, nil
	}
	return in.awaitOther(ctx, nil)
}

// renew asks for a new session after the server has forgotten that of c, and
// waits for it as long as a start may take. Any number of callers cause one
// handshake.
func (in *instance) renew(c *conn) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), in.o.cfg.startupTimeout(), errStartup)
	defer cancel()
	c.expire()
	return in.awaitOther(ctx, c)
}

// awaitOther waits for a live connection that is not old.
func (in *instance) awaitOther(ctx context.Context, old *conn) (*conn, error) {
	for waited := false; ; {
		in.mu.Lock()
		c, p, changed := in.current.Load(), in.phase, in.changed
		in.mu.Unlock()
		waited = waited || p == connecting
		switch {
		case c != nil && c != old:
			return c, nil
		case p == pausing && !waited && in.poke():
			continue
		case p == pausing && in.due(): // it is started this very moment
		case p == pausing, p == ended, p == serving && c == nil:
			return nil, in.unavailable()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// due tells whether the next start has come.
func (in *instance) due() bool {
	next := in.nextAttempt()
	return !next.IsZero() && !next.After(time.Now())
}

// pokeEvery bounds how often calls may pull a start forward.
const pokeEvery = 5 * time.Second

// poke pulls the next start forward, at most every 5 s and never one that the
// server itself has put off. It tells whether it did.
func (in *instance) poke() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.phase != pausing || in.held || time.Since(in.lastPoke) < pokeEvery {
		return false
	}
	in.lastPoke = time.Now()
	in.enterLocked(connecting, nil) // so that await waits for it
	select {
	case in.wake <- struct{}{}:
	default:
	}
	return true
}

// suspect reports that a call over c failed in transport. It may cost the
// connection, see watch: calls under way keep it until they are done.
func (in *instance) suspect(c *conn, err *wire.Error) {
	refused := err.Kind == wire.HTTPStatus && (isAuth(err) || isThrottled(err))
	lost := (err.Kind == wire.NotSent || err.Kind == wire.Lost) && c.transport != "stdio"
	if !refused && !lost {
		return
	}
	select {
	case c.trouble <- err:
	default: // as much is known already
	}
}

// setLevel sets the least severe log level wanted of a legacy server, now and
// after each reconnect. "" never sets any.
func (in *instance) setLevel(level string) {
	in.mu.Lock()
	in.level = level
	in.mu.Unlock()
	in.syncSoon()
}

// setSubscriptions sets the URIs whose updates are wanted, now and after each
// reconnect. It takes ownership of uris.
func (in *instance) setSubscriptions(uris []string) {
	slices.Sort(uris)
	in.mu.Lock()
	in.uris = slices.Compact(uris)
	in.mu.Unlock()
	in.syncSoon()
}

func (in *instance) syncSoon() {
	select {
	case in.resync <- struct{}{}:
	default:
	}
}

// status is a snapshot for the status document.
func (in *instance) status() instanceStatus {
	s := instanceStatus{Snapshot: in.tracker.Snapshot(), Transport: in.transport()}
	in.mu.Lock()
	c, l, stats := in.last, in.list, in.lastStats
	in.mu.Unlock()
	if l != nil {
		s.Protocol, s.Server = l.Protocol, l.Server
	}
	if c != nil {
		stats = c.peer.Stats()
		s.Transport = c.transport
		if c.opened.Load() {
			s.Protocol, s.Server = c.version, c.server
		}
	}
	s.Pid, s.Stderr, s.Skipped = stats.Pid, in.secrets.lines(slices.Clone(stats.Stderr)), stats.Skipped
	return s
}

// enter moves to another phase; c becomes what live returns.
func (in *instance) enter(p phase, c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.enterLocked(p, c)
}

func (in *instance) enterLocked(p phase, c *conn) {
	in.phase = p
	in.current.Store(c)
	close(in.changed)
	in.changed = make(chan struct{})
}
