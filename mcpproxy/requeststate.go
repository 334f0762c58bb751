package mcpproxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// wrapState binds an upstream's requestState to the upstream and the principal;
// the payload stays the same string, however its escapes are spelled on the way.
func (p *Proxy) wrapState(k *call, raw []byte) []byte {
	payload, ok := wire.String(raw)
	if !ok {
		return raw
	}
	return p.seal(k, stateOnly, payload)
}

// wrapSampled is wrapState with the chain's answers, so that no call waits here
// for the client. A nil state means that the upstream gave none.
func (p *Proxy) wrapSampled(k *call, state, sampled []byte) []byte {
	payload := base64.RawURLEncoding.EncodeToString(sampled)
	if s, ok := wire.String(state); ok {
		payload += "." + s
	}
	return p.seal(k, stateAndSampled, payload)
}

// The kinds of wrapped states: their first part.
const (
	stateOnly       = "u1"
	stateAndSampled = "u2"
)

func (p *Proxy) seal(k *call, kind, payload string) []byte {
	name := k.up.cfg.Name
	return wire.AppendString(nil, strings.Join([]string{kind, base64.RawURLEncoding.EncodeToString([]byte(name)),
		p.stateMAC(kind, name, k.r.c.s.Principal, payload), payload}, "."))
}

// unwrapState gives a modern upstream its own state back. It answers r itself
// when the state belongs to a parked call or was tampered with.
func (p *Proxy) unwrapState(r *request, up *upstream) ([]byte, bool) {
	if p.resume(r) {
		return nil, false
	}
	state, _ := wire.String(r.state)
	parts := strings.SplitN(state, ".", 4)
	if len(parts) != 4 || parts[1] != base64.RawURLEncoding.EncodeToString([]byte(up.cfg.Name)) ||
		!hmac.Equal([]byte(parts[2]), []byte(p.stateMAC(parts[0], up.cfg.Name, r.c.s.Principal, parts[3]))) {
		r.fail(wire.CodeInvalidParams, badState, nil)
		return nil, false
	}
	if parts[0] == stateOnly {
		return wire.AppendString(nil, parts[3]), true
	}
	encoded, own, given := strings.Cut(parts[3], ".")
	sampled, _ := base64.RawURLEncoding.DecodeString(encoded) // ours: the MAC says so
	r.sampledFirst(sampled)
	if !given {
		return nil, true
	}
	return wire.AppendString(nil, own), true
}

func (p *Proxy) stateMAC(kind, upstream, principal, payload string) string {
	mac := hmac.New(sha256.New, p.parking.key)
	mac.Write([]byte(kind + "\x00" + upstream + "\x00" + principal + "\x00" + payload))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}
