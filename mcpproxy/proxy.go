package mcpproxy

import (
	"context"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentarmor/agentarmor/mcpproxy/event"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// Proxy is the endpoint: it answers what it knows itself and forwards the rest.
// All methods are safe for concurrent use.
type Proxy struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	work    sync.WaitGroup

	own     *server.MCPServer
	ownList ownEntries
	info    []byte // our name and version, raw JSON
	memory  *memory
	forgets error // why there is no memory although there should be
	events  *event.Bus
	metrics *telemetry.Metrics
	llmNews llmNews
	alerts  *alerts
	parking *parking
	links   links
	first   firstRequest

	rebuildMu sync.Mutex
	cat       atomic.Pointer[catalog]
	listedOne chan struct{} // closed when an upstream's list is known
	listedAll chan struct{} // closed when those of all enabled ones are
	allOnce   sync.Once
	listed    sync.Once
	shown     chan struct{} // closed when a client has been shown the tools
	showOnce  sync.Once
	changes   changes

	reloadMu sync.Mutex // one Reload at a time, none after Close

	upsMu sync.RWMutex
	byUp  map[string]*upstream
	order []*upstream

	clientsMu sync.Mutex
	clients   map[*client]bool

	wantedMu sync.Mutex // what instances are told to want is computed and told in one piece

	listensMu sync.Mutex
	listens   map[*listen]bool

	transports transports

	// dial replaces the network in tests, before a Reload adds the upstreams.
	dial func(u *UpstreamConfig) func(ctx context.Context, transport string, ev wire.Events) (wire.Peer, error)
}

// New builds an endpoint; nothing runs before Start.
func New(cfg Config) (*Proxy, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Limits = cfg.Limits.Filled()
	p := &Proxy{
		cfg: cfg, log: cfg.Log, started: time.Now(),
		byUp: map[string]*upstream{}, clients: map[*client]bool{},
		parking: newParking(), events: event.New(), listedOne: make(chan struct{}), listedAll: make(chan struct{}), shown: make(chan struct{}),
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.first.known = make(chan struct{})
	p.info = infoJSON(cfg.Version)
	p.metrics = telemetry.NewMetrics(p.gauges)
	p.alerts = newAlerts(p, cfg.Alerts)
	if cfg.StateDir != "" {
		m, err := openMemory(cfg.StateDir)
		if err != nil { // works without, slower to show its tools
			p.log.Warn("catalogs are not remembered between starts", "reason", err)
		}
		p.memory, p.forgets = m, err
	}
	p.makeOwn()
	for i := range cfg.Upstreams {
		p.addUpstream(&cfg.Upstreams[i])
	}
	p.rebuild()
	p.changes.init(p)
	p.watchChaos()
	return p, nil
}

// firstAnswer bounds how long the start of upstreams stands back for the first
// answers to the only client: ten processes starting on two cores would
// triple the time to its first list.
const firstAnswer = 100 * time.Millisecond

// Start brings the upstreams up in the background and returns at once.
func (p *Proxy) Start(context.Context) {
	p.alerts.start()
	start := func() {
		for _, up := range p.ups() {
			up.start()
		}
	}
	if !p.cfg.OneClient || p.knowsNothing() {
		start()
		return
	}
	p.work.Go(func() {
		defer wire.OnPanic()
		select {
		case <-p.shown:
		case <-time.After(firstAnswer):
		case <-p.ctx.Done():
			return
		}
		start()
	})
}

// Close ends the listens gracefully, then the sessions, then the upstreams, and
// waits until nothing is left of them. ctx bounds the grace of processes.
// ServeStdio must have returned before.
func (p *Proxy) Close(ctx context.Context) {
	p.eachListen(func(l *listen) { l.end(true) })
	p.transports.close(ctx)
	p.reloadMu.Lock()
	p.stop()
	p.reloadMu.Unlock()
	p.parking.abandonAll(nil)
	var wg sync.WaitGroup
	for _, up := range p.ups() {
		wg.Go(func() {
			defer wire.OnPanic()
			up.stop(ctx)
		})
	}
	wg.Wait()
	p.changes.close()
	p.work.Wait()
}

// drainTime is how long the calls under way on an upstream that a reload
// removes or replaces may still take.
const drainTime = 30 * time.Second

// Reload replaces the upstreams by those of cfg: new ones start, missing ones
// end, changed ones are replaced, and untouched ones keep running.
func (p *Proxy) Reload(cfg Config) error {
	p.reloadMu.Lock()
	defer p.reloadMu.Unlock()
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	byUp := map[string]*upstream{}
	var order, gone, fresh []*upstream
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		up := p.upstream(u.Name)
		if up == nil || !reflect.DeepEqual(up.cfg, u) {
			up = p.newUpstream(u)
			fresh = append(fresh, up)
		}
		byUp[u.Name], order = up, append(order, up)
	}
	for _, up := range p.ups() {
		if byUp[up.cfg.Name] != up {
			gone = append(gone, up)
		}
	}
	p.upsMu.Lock()
	p.byUp, p.order = byUp, order
	p.upsMu.Unlock()
	p.rebuild()
	for _, up := range gone {
		p.work.Go(func() {
			defer wire.OnPanic()
			up.drain()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), stopGrace)
			defer cancel()
			up.stop(ctx)
		})
	}
	for _, up := range fresh {
		up.start()
	}
	p.changes.compare(0)
	p.subscriptionsChanged()
	p.levelsChanged()
	p.publish(event.Event{Kind: event.ConfigReloaded, Text: reloaded(fresh, gone)})
	return nil
}

// stopGrace bounds how long an upstream may take to end after a reload.
const stopGrace = 5 * time.Second

// ServeStdio serves one client on a pair of pipes until in ends and all that
// was read is answered, or ctx ends.
func (p *Proxy) ServeStdio(ctx context.Context, in, out *os.File) error {
	return wire.ServeStdio(ctx, wire.Pollable(in), wire.Pollable(out), p, p.cfg.Limits)
}

// addUpstream registers an upstream of the first configuration.
func (p *Proxy) addUpstream(u *UpstreamConfig) {
	up := p.newUpstream(u)
	p.byUp[u.Name], p.order = up, append(p.order, up)
}

func (p *Proxy) upstream(name string) *upstream {
	p.upsMu.RLock()
	defer p.upsMu.RUnlock()
	return p.byUp[name]
}

// ups returns the upstreams in config order.
func (p *Proxy) ups() []*upstream {
	p.upsMu.RLock()
	defer p.upsMu.RUnlock()
	return append([]*upstream(nil), p.order...)
}

// firstRequest is what the first request of the only client tells: upstreams that
// start meanwhile wait for it, so that they can be told that client's capabilities.
type firstRequest struct {
	once   sync.Once
	known  chan struct{}
	modern bool
	caps   []byte
}

func (f *firstRequest) set(modern bool, caps []byte) {
	f.once.Do(func() {
		f.modern, f.caps = modern, caps
		close(f.known)
	})
}

// sharedCapabilities is what a legacy upstream is told that all clients share.
var sharedCapabilities = []byte(`{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}`)

// capabilities waits at most a second for the only client, if there is one.
func (p *Proxy) capabilities(ctx context.Context) []byte {
	if !p.cfg.OneClient {
		return sharedCapabilities
	}
	select {
	case <-p.first.known:
		if p.first.caps != nil {
			return p.first.caps
		}
	case <-time.After(time.Second):
	case <-ctx.Done():
	}
	return sharedCapabilities
}

// preferLegacy is the generation of the only client, if it is known by now.
func (p *Proxy) preferLegacy() (legacy, known bool) {
	select {
	case <-p.first.known:
		return !p.first.modern, p.cfg.OneClient
	default:
		return false, false
	}
}
