package main

import (
	"encoding/json"
	"errors"
	"time"
)

// statusDocument is what we show of agentarmor://status. What an endpoint of
// another version leaves out stays nil or zero.
type statusDocument struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Chaos     struct {
		Enabled bool `json:"enabled"`
		Active  int  `json:"active"`
	} `json:"chaos"`
	Summary struct {
		Upstreams        int    `json:"upstreams"`
		Ready            int    `json:"ready"`
		Tools            int    `json:"tools"`
		ToolsUnavailable int    `json:"tools_unavailable"`
		Text             string `json:"text"`
	} `json:"summary"`
	Upstreams map[string]upstreamStatus `json:"upstreams"`
	LLM       *llmStatus                `json:"llm"`
	Alerts    []struct {
		Text       string     `json:"text"`
		Since      time.Time  `json:"since"`
		ResolvedAt *time.Time `json:"resolved_at"`
		Injected   string     `json:"injected"`
	} `json:"alerts"`
}

type upstreamStatus struct {
	State         string                `json:"state"`
	Reason        string                `json:"reason"`
	NextAttempt   *time.Time            `json:"next_attempt"`
	RetryAfterMS  int64                 `json:"retry_after_ms"`
	Pid           int                   `json:"pid"`
	Restarts      int                   `json:"restarts"`
	LastError     string                `json:"last_error"`
	LastSuccess   *time.Time            `json:"last_success"`
	Stderr        []string              `json:"stderr"`
	Tools         int                   `json:"tools"`
	Breaker       *breakerStatus        `json:"breaker"`
	Window        *windowStatus         `json:"window"`
	DegradedTools map[string]toolStatus `json:"degraded_tools"`
	Quarantined   map[string]string     `json:"quarantined"`
}

type breakerStatus struct {
	State string     `json:"state"`
	Until *time.Time `json:"until"`
}

// windowStatus counts the calls of the last minutes; times are milliseconds.
type windowStatus struct {
	Calls     int     `json:"calls"`
	ErrorRate float64 `json:"error_rate"`
	P95MS     float64 `json:"p95_ms"`
	InFlight  int     `json:"in_flight"`
	Queued    int     `json:"queued"`
}

// toolStatus is a tool that does not work as it should.
type toolStatus struct {
	Name         string         `json:"name"` // as listed
	Breaker      *breakerStatus `json:"breaker"`
	LastError    string         `json:"last_error"`
	Alternatives []string       `json:"alternatives"`
}

func readDocument(raw []byte) (*statusDocument, error) {
	doc := &statusDocument{}
	if err := json.Unmarshal(raw, doc); err != nil {
		return nil, errors.New("the status has an unknown shape: is the endpoint of another version?")
	}
	return doc, nil
}

// steady returns the document without what changes by itself: times and counts of calls.
func (d *statusDocument) steady() *statusDocument {
	out := *d
	out.Summary.Text = "" // it names times
	out.LLM = d.LLM.steady()
	out.Upstreams = map[string]upstreamStatus{}
	for name, u := range d.Upstreams {
		u.NextAttempt, u.RetryAfterMS, u.LastSuccess, u.Window = nil, 0, nil, nil
		u.Breaker = u.Breaker.steady()
		tools := map[string]toolStatus{}
		for name, t := range u.DegradedTools {
			t.Breaker = t.Breaker.steady()
			tools[name] = t
		}
		u.DegradedTools = tools
		out.Upstreams[name] = u
	}
	return &out
}

func (b *breakerStatus) steady() *breakerStatus {
	if b == nil {
		return nil
	}
	return &breakerStatus{State: b.State}
}
