package mcpproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// sampler has the chain answer the sampling requests of one upstream whose
// client cannot, with "sampling: chain". A nil one answers nothing. What it
// spends is bounded: in time by the chain, and by the limits below.
type sampler struct {
	chain *llm.Chain
	slots chan struct{}
	rate  *rate.Limiter

	mu    sync.Mutex
	under map[*ask]context.CancelFunc // under way
}

const (
	samplesAtOnce = 4
	samplesBurst  = 60 // and one a second from then on
)

// newSampler returns nil unless the chain is to answer and has a model to ask.
func newSampler(u *UpstreamConfig, chain *llm.Chain) *sampler {
	if u.Sampling != "chain" || chain == nil || len(chain.Status().Chain) == 0 {
		return nil
	}
	return &sampler{
		chain: chain, slots: make(chan struct{}, samplesAtOnce), rate: rate.NewLimiter(1, samplesBurst),
		under: map[*ask]context.CancelFunc{},
	}
}

const createMessageMethod = "sampling/createMessage"

// declare returns the capabilities that the upstream is told where its clients
// have caps: what these cannot do, the chain does. A client that samples says so
// itself.
func (s *sampler) declare(caps []byte) []byte {
	if s == nil || declared(caps, "sampling") && !bytes.Equal(caps, sharedCapabilities) {
		return caps
	}
	return wire.Rewrite(nil, caps, wire.Edit{Key: "sampling", Value: []byte(`{"tools":{}}`)})
}

// answers tells whether the chain answers a request that a client with caps cannot.
func (s *sampler) answers(caps []byte, method string, params []byte) bool {
	if s == nil || method != createMessageMethod {
		return false
	}
	return !declared(caps, "sampling") || declared(params, "tools") && !declared(caps, "sampling", "tools")
}

// answersAll tells whether the chain answers whichever call the request came
// from, where that cannot be told: then nobody else is to see it.
func (s *sampler) answersAll(c *conn, m wire.Message, via uint64) bool {
	var calls []*call
	if via == 0 {
		calls = c.routed()
	}
	return len(calls) > 0 && !slices.ContainsFunc(calls, func(k *call) bool {
		return !s.answers(k.request().capabilities(), m.Method, m.Params)
	})
}

// capabilities are what the client has declared, with the request or before.
func (r *request) capabilities() []byte {
	if r.modern {
		return r.hop.caps
	}
	return r.c.capabilities()
}

// sample has the chain answer a, until ctx ends: with the call that caused it.
func (p *Proxy) sample(ctx context.Context, a *ask, params []byte) {
	s := a.conn.in.up.sampler
	if !s.rate.Allow() {
		a.done(notSampled(wire.CodeInternal, "this server asks for too much at once", sampled{}))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.under[a] = cancel
	s.mu.Unlock()
	p.work.Go(func() {
		defer wire.OnPanic()
		a.done(s.answer(ctx, a.conn, params))
		s.forget(a)
	})
}

// forget stops what is under way for a.
func (s *sampler) forget(a *ask) {
	s.mu.Lock()
	cancel := s.under[a]
	delete(s.under, a)
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// drop ends the requests that match without an answer: nobody waits for it.
func (s *sampler) drop(match func(a *ask) bool) {
	if s == nil {
		return
	}
	var void []*ask
	s.mu.Lock()
	for a := range s.under {
		if match(a) {
			void = append(void, a)
		}
	}
	s.mu.Unlock()
	for _, a := range void {
		a.drop()
		s.forget(a)
	}
}

// answer asks the chain. Where no model answers, that is an error that says so:
// the chain's apology is no sample.
func (s *sampler) answer(ctx context.Context, c *conn, params []byte) wire.Message {
	var m createMessage
	if err := json.Unmarshal(params, &m); err != nil {
		return notSampled(wire.CodeInvalidParams, "the params of "+createMessageMethod+" are wrong: "+err.Error(), sampled{})
	}
	r, err := m.request(c.version >= wire.Legacy)
	if err != nil {
		return notSampled(wire.CodeInvalidParams, err.Error(), sampled{})
	}
	m.Preferences.prefer(r, s.chain.Status())
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return notSampled(wire.CodeMethodNotFound, callEnded, sampled{})
	}
	resp, err := s.chain.Complete(ctx, r)
	switch {
	case ctx.Err() != nil:
		return notSampled(wire.CodeMethodNotFound, callEnded, sampled{})
	case err != nil:
		about := sampled{}
		if e, ok := errors.AsType[*llm.Error](err); ok && e.Trace != nil {
			about.Provider, about.Trace = e.Provider, e.Trace.ID
		}
		return notSampled(wire.CodeInternal, "no language model has answered: "+err.Error(), about)
	case resp.Degraded:
		about := sampled{Degraded: true, Trace: resp.Trace.ID}
		why := "no language model can be reached"
		if at := resp.NotBefore; !at.IsZero() {
			about.NotBefore = new(notEarlier(at).UTC())
			why += ", do not retry before " + about.NotBefore.Format(time.RFC3339)
		}
		return notSampled(wire.CodeInternal, why, about)
	}
	return wire.Message{Result: createMessageResult(resp)}
}

// notSampled is an error in the place of a sample.
func notSampled(code int, why string, about sampled) wire.Message {
	raw, _ := json.Marshal(struct { // nothing in it fails to encode
		Code    int         `json:"code"`
		Message string      `json:"message"`
		Data    sampledMeta `json:"data,omitzero"`
	}{code, "AgentArmor: not sampled: " + cut(why, 400), sampledMeta{about}})
	return wire.Message{Error: raw}
}

// sampledFirst puts the chain's answers to a part of what a modern upstream
// asked among those that the client brings to the rest.
func (r *request) sampledFirst(responses []byte) {
	var edits []wire.Edit
	for key, response := range wire.Members(responses) {
		edits = append(edits, wire.Edit{Key: key, Value: response})
	}
	if len(r.responses) == 0 || r.responses[0] != '{' {
		r.responses = []byte(`{}`)
	}
	r.responses = wire.Rewrite(nil, r.responses, edits...)
	r.params = wire.Rewrite(nil, r.params, wire.Edit{Key: "requestState"}, wire.Edit{Key: "inputResponses", Value: r.responses})
}
