package mcpproxy

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// lookup returns the waiter of a request under way, nil if there is none.
func (c *conn) lookup(id uint64) waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiters[id]
}

// routed returns the calls of clients under way, oldest first.
func (c *conn) routed() []*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	var calls []*call
	for _, id := range slices.Sorted(maps.Keys(c.waiters)) {
		if k, ok := c.waiters[id].(*call); ok {
			calls = append(calls, k)
		}
	}
	return calls
}

// respond sends our answer to a request of the server; a connection that is
// gone needs none.
func (c *conn) respond(raw []byte) {
	_ = c.send(wire.Outgoing{Body: raw})
}

// nextAttempt is when the instance will try to connect again, zero if it is not waiting.
func (in *instance) nextAttempt() time.Time {
	if at := in.status().NextAttempt; at != nil {
		return *at
	}
	return time.Time{}
}

// retryAt is when a call refused with err may be tried again, zero if unknown.
func retryAt(err error) time.Time {
	if u, ok := errors.AsType[*unavailable](err); ok {
		return u.retryAt
	}
	return time.Time{}
}
