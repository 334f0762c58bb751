package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy"
	"github.com/agentarmor/agentarmor/mcpproxy/telemetry"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// server is everything that runs for serve. It ends in the reverse order of
// its start: first nothing reloads any more, then the proxy closes.
type server struct {
	flags serveFlags
	env   lookup
	log   *slog.Logger
	level *slog.LevelVar
	chain *llm.Chain // outlives the proxy, which does not own it
	chaos *chaos.Injector
	proxy *mcpproxy.Proxy
	stop  context.CancelFunc
	wg    sync.WaitGroup
	once  sync.Once

	tracer *telemetry.Tracer // nil: traces are off

	settings *settings // of the start; the newest belong to follow
}

// build makes all parts from the flags and the config file and starts none.
func (a *app) build(f serveFlags) (*server, error) {
	set, err := loadSettings(f.config, a.env)
	if err != nil {
		return nil, err
	}
	if err := set.override(f); err != nil {
		return nil, err
	}
	s := &server{flags: f, env: a.env, settings: set, stop: func() {}}
	s.log, s.level = newLogger(a.stderr, set.log, a.env)
	s.warn(set)
	cfg := set.proxy
	cfg.Log = s.log
	if s.tracer, err = telemetry.NewTracer(context.Background(), version(), s.log); err != nil {
		return nil, usage("traces: %v", err)
	}
	cfg.Tracer = s.tracer
	var later atomic.Pointer[mcpproxy.Proxy]
	s.chaos = chaos.New(set.chaos)
	cfg.Chaos = s.chaos
	if s.chain, err = newChain(&set.llm, a.env, s.chaos, &later); err != nil {
		return nil, err
	}
	cfg.LLM = s.chain
	s.proxy, err = mcpproxy.New(cfg)
	later.Store(s.proxy)
	return s, err
}

// override applies the flags.
func (s *settings) override(f serveFlags) error {
	s.proxy.OneClient = f.transport == "stdio"
	s.proxy.ToolNames = cmp.Or(f.toolNames, s.proxy.ToolNames)
	s.log.level = cmp.Or(f.log.level, s.log.level)
	s.log.format = cmp.Or(f.log.format, s.log.format)
	if f.listen != "" {
		if msg := address(f.listen); msg != "" {
			return usage("--listen: %s", msg)
		}
		s.listen = f.listen
	}
	if f.transport != "stdio" && len(s.tokens) == 0 && !loopback(s.listen) {
		return usage("--listen: %s in the config file", needsToken)
	}
	s.chaos.Enabled = s.chaos.Enabled || f.chaos
	return nil
}

func (s *server) warn(set *settings) {
	for _, w := range set.warnings {
		s.log.Warn(w)
	}
	if set.chaos.Enabled {
		s.log.Warn("chaos is on: what is behind the endpoint can be broken")
	}
	if names := set.llm.skippedEntries(); names != nil {
		s.log.Info("llm.chain: skipped, because their api_key is empty", "entries", names)
	}
	if set.file == "" {
		s.log.Info("no config file, so no upstreams; see agentarmor serve --help")
	}
}

// start brings the upstreams up and follows the config, all in the background.
func (s *server) start(ctx context.Context) {
	s.proxy.Start(ctx)
	ctx, s.stop = context.WithCancel(ctx)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	s.wg.Go(func() {
		defer wire.OnPanic()
		defer signal.Stop(hup)
		s.follow(ctx, hup)
	})
}

// close ends everything and waits for it. It may be called more than once.
func (s *server) close() {
	s.once.Do(func() {
		s.stop()
		s.wg.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		s.chaos.Close() // no fault holds up the end
		s.proxy.Close(ctx)
		_ = s.chain.Close() // of idle connections
		if err := s.tracer.Shutdown(ctx); err != nil {
			s.log.Warn("the last traces were not sent", "reason", err)
		}
	})
}

// httpErrors is where net/http complains about clients.
func (s *server) httpErrors() *log.Logger {
	return slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
}

// follow reloads at each SIGHUP and each change of the config file.
func (s *server) follow(ctx context.Context, hup <-chan os.Signal) {
	now := s.settings
	changed := make(chan struct{}, 1)
	if now.file != "" {
		w, err := watchFile(now.file, changed)
		if err != nil {
			s.log.Warn("changes of the config file are not seen; SIGHUP reloads it", "reason", err)
		} else {
			defer w.close()
			changed <- struct{}{} // what was written since it was read went unseen
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			now = s.reload(now, true)
		case <-changed:
			now = s.reload(now, false)
		}
	}
}

// reload replaces the settings by those of the file as it is now, or keeps
// them when it has mistakes or, unless forced, has not changed. It returns
// the settings in effect.
func (s *server) reload(now *settings, force bool) *settings {
	file := cmp.Or(s.flags.config, now.file)
	next, err := loadSettings(file, s.env)
	if err == nil && !force && bytes.Equal(next.source, now.source) {
		return now
	}
	if err == nil {
		err = next.override(s.flags)
	}
	if err != nil {
		s.refuse(err)
		return now
	}
	s.warn(next)
	s.level.Set(logLevel(next.log.level))
	if keys := needRestart(now, next); keys != nil {
		s.log.Warn("takes effect after a restart", "keys", keys)
	}
	cfg := next.proxy
	cfg.Log = s.log
	if err := s.proxy.Reload(cfg); err != nil {
		s.refuse(err)
		return now
	}
	s.log.Info("config reloaded", "upstreams", len(cfg.Upstreams))
	// What needs a restart is compared with the start, not with the last reload.
	next.listen, next.tokens, next.origins = now.listen, now.tokens, now.origins
	next.llm, next.chaos, next.proxy.Alerts = now.llm, now.chaos, now.proxy.Alerts
	next.proxy.Limits, next.proxy.StateDir, next.proxy.ToolNames = now.proxy.Limits, now.proxy.StateDir, now.proxy.ToolNames
	return next
}

func (s *server) refuse(err error) {
	const msg = "config not reloaded, the old one stays in effect"
	ce, ok := errors.AsType[*configError](err)
	if !ok {
		s.log.Error(msg, "reason", err)
		return
	}
	for _, i := range ce.issues {
		s.log.Error(msg, "reason", i.in(ce.file))
	}
}

// needRestart names the keys that differ and are read at the start only.
func needRestart(was, is *settings) []string {
	var keys []string
	differ := func(key string, yes bool) {
		if yes {
			keys = append(keys, key)
		}
	}
	differ("listen", was.listen != is.listen)
	differ("auth.tokens", !slices.Equal(was.tokens, is.tokens))
	differ("allowed_origins", !slices.Equal(was.origins, is.origins))
	differ("limits", was.proxy.Limits != is.proxy.Limits)
	differ("catalog_cache, state_dir", was.proxy.StateDir != is.proxy.StateDir)
	differ("tool_names", was.proxy.ToolNames != is.proxy.ToolNames)
	differ("llm", !reflect.DeepEqual(was.llm, is.llm))
	differ("chaos", !reflect.DeepEqual(was.chaos, is.chaos))
	differ("alerts", !reflect.DeepEqual(was.proxy.Alerts, is.proxy.Alerts))
	differ("log.format", was.log.format != is.log.format)
	return keys
}
