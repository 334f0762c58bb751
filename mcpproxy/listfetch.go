package mcpproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// maxPages bounds one list, whatever cursors the server makes up.
const maxPages = 1000

// cacheHint is what a list says about itself (2026-07-28, caching).
type cacheHint struct {
	ttl    int64 // ms, -1 if not given
	public bool
}

// fetch gets all pages of one list.
func (l *lister) fetch(ctx context.Context, k listKind) (entries []json.RawMessage, h cacheHint, err error) {
	var params, last []byte
	h = cacheHint{ttl: -1}
	seen := map[string]bool{}
	for range maxPages {
		m, err := l.page(ctx, k, params)
		if err != nil {
			return nil, h, err
		}
		if m.Error != nil {
			e := parseRPCError(m.Error)
			if e.code == wire.CodeMethodNotFound && k != tools {
				return nil, h, nil // many declare resources and have no templates
			}
			return nil, h, e
		}
		if bytes.Equal(m.Result, last) {
			return entries, h, nil // its cursor leads to where it came from
		}
		last = m.Result
		page := wire.Get(m.Result, kindTable[k].member)
		if len(page) == 0 || page[0] != '[' {
			return nil, h, fmt.Errorf("the result has no %s", kindTable[k].member)
		}
		for e := range wire.Elements(bytes.Clone(page)) {
			entries = append(entries, e)
		}
		if len(seen) == 0 {
			h = readCacheHint(m.Result)
		}
		cursor := wire.Get(m.Result, "nextCursor")
		if cursor == nil || string(cursor) == "null" || seen[string(cursor)] {
			return entries, h, nil
		}
		seen[string(cursor)] = true
		params = append(append([]byte(`{"cursor":`), cursor...), '}')
	}
	l.c.in.log.Warn("a list has too many pages, the rest is left out", "list", listTable[k].method)
	return entries, h, nil
}

// page makes one request within its budget.
func (l *lister) page(ctx context.Context, k listKind, params []byte) (wire.Message, error) {
	in := l.c.in
	budget, spent := l.budget(k)
	ctx, cancel := context.WithTimeoutCause(ctx, budget, spent)
	defer cancel()
	m, err := l.c.call(ctx, listTable[k].method, params)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		in.failedOwn(l.c, e)
	}
	return m, err
}

// budget is how long a request for a list may take, and what to say after
// that. The first list of a connection belongs to its start, which may be slow
// where calls are not; what comes later, or is tried again after the time of the
// start, is a call.
func (l *lister) budget(k listKind) (time.Duration, error) {
	in := l.c.in
	if left := time.Until(l.c.started.Add(in.o.cfg.startupTimeout())); left > 0 && !l.listed.has(k) {
		return left, errStartup
	}
	d := in.o.cfg.callTimeout()
	return d, fmt.Errorf("no answer within %v", d)
}

func readCacheHint(result []byte) cacheHint {
	var r struct {
		TTL   *int64 `json:"ttlMs"`
		Scope string `json:"cacheScope"`
	}
	_ = json.Unmarshal(result, &r) // what is missing or odd gives no hint
	h := cacheHint{ttl: -1, public: r.Scope == "public"}
	if r.TTL != nil {
		h.ttl = max(*r.TTL, 0)
	}
	return h
}
