package main

import (
	"cmp"
	"math"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/llm"
)

// llmSettings are the models and how they are asked.
type llmSettings struct {
	options llm.Options
	quiet   bool       // tool_status_in_system_prompt: false
	entries []llmEntry // nil: the file has no chain
}

// llmEntry is one entry of llm.chain.
type llmEntry struct {
	llm.Spec
	open bool // api_key is left out: the API wants none
}

// skipped tells whether the entry's key is empty.
func (e *llmEntry) skipped() bool { return e.APIKey == "" && !e.open }

// skippedEntries names the entries without a key, as far as the config file has them.
func (s *llmSettings) skippedEntries() (names []string) {
	for i := range s.entries {
		if e := &s.entries[i]; e.skipped() {
			names = append(names, e.Name)
		}
	}
	return names
}

// chain returns the entries: of the file, else the default ones.
func (s *llmSettings) chain(env lookup) []llmEntry {
	if s.entries != nil {
		return s.entries
	}
	var entries []llmEntry
	for _, spec := range llm.DefaultChain(func(name string) string { v, _ := env(name); return v }) {
		entries = append(entries, llmEntry{Spec: spec})
	}
	return entries
}

// Defaults that other keys are compared with.
const (
	llmTimeout     = 50 * time.Second
	llmBackoffBase = 800 * time.Millisecond
	llmBackoffMax  = 8 * time.Second
	llmOpenFor     = 15 * time.Second
)

var strategies = []string{string(llm.ByPriority), string(llm.ByHealth), string(llm.ByLatency), string(llm.ByCost)}

// llm reads how models are asked. In the file 0 is none; in the options, which
// it fills, it is the default, and what is below it none.
func (d *decoder) llm(n *node, s *llmSettings) {
	o := &s.options
	jitter, size, wait := math.NaN(), -1, time.Duration(-1)
	tell := true
	d.object(n, fields{
		"strategy": d.oneOf((*string)(&o.Strategy), strategies...),
		"timeout":  d.duration(&o.Timeout, false),
		"attempts": d.ranged(&o.Attempts, 1, maxRetries),
		"backoff": func(n *node) {
			d.object(n, fields{
				"base":   d.duration(&o.Backoff.Base, false),
				"max":    d.duration(&o.Backoff.Max, false),
				"jitter": d.number(&jitter, 0, 1),
			})
		},
		"breaker":     d.llmBreaker(&o.Breaker),
		"hedge_after": d.duration(&o.HedgeAfter, true),
		"queue": func(n *node) {
			d.object(n, fields{"size": d.ranged(&size, 0, maxWaiting), "wait": d.duration(&wait, true)})
		},
		"degraded_message":             d.text(&o.DegradedMessage, notEmpty),
		"tool_status_in_system_prompt": d.flag(&tell),
		"chain":                        func(n *node) { d.chain(n, s) },
	})
	s.quiet = !tell
	if !math.IsNaN(jitter) {
		o.Backoff.Jitter = cmp.Or(jitter, -1)
	}
	if size == 0 || wait == 0 {
		o.Queue.Size = -1
	} else {
		o.Queue.Size, o.Queue.Wait = max(size, 0), max(wait, 0)
	}
	d.llmTimes(n, s)
}

// llmBreaker reads the breaker of every entry. There is no switching it off: a
// chain without one would send every call to a provider that is down.
func (d *decoder) llmBreaker(p *health.BreakerOptions) setter {
	return func(n *node) {
		d.object(n, fields{
			"failures":     d.ranged(&p.Failures, 1, maxCount),
			"failure_rate": d.failureRate(&p.FailureRate, ""),
			"min_calls":    d.ranged(&p.MinCalls, 1, maxCount),
			"window":       d.duration(&p.Window, false),
			"open_for":     d.duration(&p.OpenFor, false),
			"max_open_for": d.duration(&p.MaxOpenFor, false),
			"successes":    d.ranged(&p.Successes, 1, maxCount),
		})
	}
}

// chain reads the entries in the order in which they are tried.
func (d *decoder) chain(n *node, s *llmSettings) {
	s.entries = []llmEntry{}
	names := map[string]bool{}
	d.items(n, func(item *node) {
		e := d.chainEntry(item)
		if e.Name != "" && names[e.Name] {
			d.fail(item.get("name"), "duplicate name")
		}
		names[e.Name] = true
		s.entries = append(s.entries, e)
	})
}

func (d *decoder) chainEntry(n *node) llmEntry {
	e := llmEntry{open: true}
	d.object(n, fields{
		"name":     d.text(&e.Name, notEmpty),
		"provider": d.oneOf(&e.API, "gemini", "openai"),
		"model":    d.text(&e.Model, notEmpty),
		"api_key": func(n *node) {
			d.text(&e.APIKey, apiKey)(n)
			e.open, e.APIKey, e.KeyVariable = false, strings.TrimSpace(e.APIKey), firstVariable(n.text)
		},
		"base_url": d.text(&e.BaseURL, optional(baseURL)),
		"timeout":  d.duration(&e.Timeout, false),
		"rpm":      d.ranged(&e.RPM, 0, math.MaxInt32),
		"tpm":      d.ranged(&e.TPM, 0, math.MaxInt32),
		"price": func(n *node) {
			d.object(n, fields{
				"input":  d.number(&e.Price.Input, 0, math.Inf(1)),
				"output": d.number(&e.Price.Output, 0, math.Inf(1)),
			})
		},
	})
	if n.kind != kindMapping {
		return e
	}
	for _, key := range []string{"name", "provider", "model"} {
		if n.get(key) == nil {
			d.fail(n, "needs a %s", key)
		}
	}
	if e.open && e.BaseURL == "" {
		d.warn(n, "has no api_key, so the public API is asked without one")
	}
	return e
}

// llmTimes checks the durations of n that make sense only together.
func (d *decoder) llmTimes(n *node, s *llmSettings) {
	whole := cmp.Or(s.options.Timeout, llmTimeout)
	b, breaker := s.options.Backoff, s.options.Breaker
	d.ordered(n.get("backoff"), "base", cmp.Or(b.Base, llmBackoffBase), "max", cmp.Or(b.Max, llmBackoffMax))
	open := cmp.Or(breaker.OpenFor, llmOpenFor)
	d.ordered(n.get("breaker"), "open_for", open, "max_open_for", cmp.Or(breaker.MaxOpenFor, open))
	d.ordered(n, "hedge_after", s.options.HedgeAfter, "timeout", whole)
	for i := range s.entries {
		if at := n.get("chain").items[i].get("timeout"); at != nil && s.entries[i].Timeout > whole {
			d.fail(at, "is longer than llm.timeout, %v", whole)
		}
	}
}

// baseURL is a check for where an API is. What is no part of a path is refused:
// requests are sent below it, and nothing secret may stand in it.
func baseURL(s string) string {
	if msg := webURL(s); msg != "" {
		return msg
	}
	if u, err := url.Parse(s); err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "must have no user, query or fragment; the key goes into api_key"
	}
	return ""
}

// apiKey is a check for what is sent in a header.
func apiKey(s string) string {
	for _, r := range strings.TrimSpace(s) {
		if r <= ' ' || r > '~' {
			return "a key has visible ASCII characters only"
		}
	}
	return ""
}

var variableReference = regexp.MustCompile(`\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)`)

// firstVariable returns the first variable that a text refers to, or "".
func firstVariable(s string) string {
	if m := variableReference.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return ""
}
