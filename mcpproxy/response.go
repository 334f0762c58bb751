package mcpproxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/agentarmor/agentarmor/health"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// What the upstream answers reaches the client as it came, but for what the two
// generations differ in.

// answered implements waiter.
func (k *call) answered(m wire.Message) {
	if m.Result != nil && k.conn.modern && asksInput(m.Result) {
		k.inputRequired(m)
		return
	}
	k.struck(k.underWay(), false)
	class, code := classOf(m)
	k.settle(class, code, "the server answered with an error")
	k.mu.Lock()
	k.answering = true
	k.mu.Unlock()
	if !k.finish(func() { k.answered(m) }) {
		return
	}
	k.p.observe(k, m)
	k.ended(k.account(class, "", time.Time{}))
	if class == health.OK {
		k.keep(m.Result)
	}
	_ = k.r.st.Answer(k.response(m), m.More) // a client that left needs no answer
	if k.follower != nil {
		// Here, and not in a goroutine each: what is answered in one go lets as
		// much be sent in one go.
		k.follower.try()
	}
}

// asksInput tells whether a result asks for input and ends nothing.
func asksInput(result []byte) bool {
	t, _ := wire.String(wire.Get(result, "resultType"))
	return t == "input_required"
}

// classOf classifies an answer.
func classOf(m wire.Message) (class health.Class, code int) {
	e := health.Evidence{HasRPCError: m.Error != nil}
	if e.HasRPCError {
		code, _ = strconv.Atoi(string(wire.Get(m.Error, "code"))) // none is 0
		e.RPCCode = code
	} else {
		e.IsToolError = isError(m.Result)
	}
	return health.Classify(e), code
}

var errorMark = []byte(`"isError"`)

// isError tells whether a result says that the tool failed.
func isError(result []byte) bool {
	return bytes.Contains(result, errorMark) && string(wire.Get(result, "isError")) == "true"
}

// response is the upstream's answer as the client of the call gets it.
func (k *call) response(m wire.Message) []byte {
	r := k.r
	if m.Error != nil {
		if r.modern && !k.conn.modern && string(wire.Get(m.Error, "code")) == "-32042" {
			return k.visitURLs(m.Error)
		}
		return wire.AppendErrorRaw(nil, r.id, k.errorFor(m.Error))
	}
	result := m.Result
	switch {
	case k.tries > 1 || k.injected != "":
		class, _ := classOf(m)
		result = k.resultFor(result, k.account(class, "", time.Time{}).json(k.up.cfg.Name))
	case r.modern || k.conn.modern:
		result = k.resultFor(result, nil)
	}
	return wire.AppendResult(wire.Buffer(len(result)+len(r.id)+40), r.id, result)
}

// errorFor keeps an error as it came, but for the code that the client's
// revision must not see: -32002 became -32602 (2026-07-28, server/resources).
func (k *call) errorFor(raw []byte) []byte {
	if k.r.modern && !k.conn.modern && string(wire.Get(raw, "code")) == "-32002" {
		return wire.Rewrite(nil, raw, wire.Edit{Key: "code", Value: []byte("-32602")})
	}
	return raw
}

// resultFor adds what the 2026-07-28 revision requires of a result to one of
// an older server, keeps the hop's own _meta keys on their hop, and tells what
// AgentArmor did, if that is not nil.
func (k *call) resultFor(result, account []byte) []byte {
	const server = wire.MetaPrefix + "serverInfo"
	var edits, metaEdits []wire.Edit
	meta := wire.Get(result, "_meta")
	if account != nil {
		metaEdits = append(metaEdits, wire.Edit{Key: "agentarmor/call", Value: account})
	}
	switch {
	case k.r.modern:
		metaEdits = append(metaEdits, wire.Edit{Key: server, Value: k.p.info})
		if wire.Get(result, "resultType") == nil {
			edits = append(edits, wire.Edit{Key: "resultType", Value: []byte(`"complete"`)})
		}
		if k.r.method == "resources/read" && !k.conn.modern {
			edits = append(edits, wire.Edit{Key: "ttlMs", Value: []byte("0")}, wire.Edit{Key: "cacheScope", Value: []byte(`"private"`)})
		}
	case wire.Get(meta, server) != nil:
		metaEdits = append(metaEdits, wire.Edit{Key: server})
	}
	if metaEdits == nil {
		return result
	}
	if len(meta) == 0 || meta[0] != '{' {
		meta = []byte(`{}`)
	}
	meta = wire.Rewrite(nil, meta, metaEdits...)
	if string(meta) == "{}" {
		meta = nil
	}
	edits = append([]wire.Edit{{Key: "_meta", Value: meta}}, edits...)
	return wire.Rewrite(make([]byte, 0, len(result)+300), result, edits...)
}
