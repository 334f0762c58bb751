package mcpproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// discover does the modern handshake. An *eraError means that the server is a
// legacy one.
func (a *attempt) discover(budget time.Duration) error {
	a.c.modern = true
	ctx, cancel := context.WithTimeoutCause(a.ctx, budget, errDiscover)
	defer cancel()
	m, err := a.c.call(ctx, "server/discover", nil)
	switch {
	case errors.Is(err, errDiscover):
		a.silent = true
		return &eraError{err}
	case err != nil:
		return a.noDiscover(err)
	case m.Error != nil:
		return discoverRefused(m.Error)
	}
	var r struct {
		SupportedVersions []string        `json:"supportedVersions"`
		Capabilities      json.RawMessage `json:"capabilities"`
		Instructions      string          `json:"instructions"`
		Meta              json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(m.Result, &r) != nil || r.SupportedVersions == nil {
		return &eraError{errors.New("what answers server/discover is no DiscoverResult")}
	}
	if err := checkSupported(r.SupportedVersions); err != nil {
		return err
	}
	c := a.c
	c.version, c.capabilities, c.instructions = wire.Modern, r.Capabilities, r.Instructions
	c.server = wire.Get(r.Meta, wire.MetaPrefix+"serverInfo")
	a.ready()
	return nil
}

// noDiscover decides what a discover without answer says. A process that
// leaves is a legacy one that cannot bear the probe: it is started again and
// asked as such from now on. A known modern one has crashed.
func (a *attempt) noDiscover(err error) error {
	e, ok := errors.AsType[*wire.Error](err)
	switch {
	case !ok:
		return err
	case e.Kind == wire.HTTPStatus && (isAuth(e) || isThrottled(e)):
		return e
	case e.Kind == wire.NotSent && a.transport != "stdio":
		return e
	case e.Kind != wire.Lost && e.Kind != wire.NotSent:
		return &eraError{e}
	}
	known, probing := a.in.era == eraModern, a.in.o.cfg.Protocol != wire.Modern
	if a.transport == "stdio" {
		err = a.exit(e)
	}
	if known || !probing {
		a.in.era = eraUnknown
		return err
	}
	if a.transport == "stdio" {
		a.in.era = eraLegacy
		a.close()
	}
	return &eraError{err}
}

// exit waits a moment for what the process has to say about its end, which is
// told after its requests have failed.
func (a *attempt) exit(err error) error {
	select {
	case <-a.c.done:
		return endOf(a.c)
	case <-time.After(exitWait):
	case <-a.ctx.Done():
	}
	return err
}

// exitWait bounds the time between the end of the pipes and that of the process.
const exitWait = 2 * time.Second

// discoverRefused reads the error of a server/discover: only the codes of
// 2026-07-28 come from a modern server.
func discoverRefused(raw []byte) error {
	e := parseRPCError(raw)
	switch e.code {
	case wire.CodeUnsupportedVersion:
		return checkSupported(e.supported)
	case wire.CodeHeaderMismatch, wire.CodeMissingCapability:
		return fmt.Errorf("server/discover: %w", e)
	}
	return &eraError{fmt.Errorf("server/discover: %w", e)}
}

// checkSupported returns nil if the server speaks our modern revision, an
// *eraError if it speaks a legacy one of ours, else why neither will do.
func checkSupported(supported []string) error {
	if slices.Contains(supported, wire.Modern) {
		return nil
	}
	err := fmt.Errorf("it speaks %.200q only", supported)
	if slices.ContainsFunc(supported, isLegacyVersion) {
		return &eraError{err}
	}
	return err
}

func isLegacyVersion(v string) bool { return v != wire.Modern && slices.Contains(wire.Versions, v) }

// initialize does the legacy handshake. An *eraError means that the server
// refuses it; one that failed in transport might do better another time.
func (a *attempt) initialize() error {
	c := a.c
	c.modern = false
	params := append([]byte(`{"protocolVersion":"`+wire.Legacy+`","capabilities":`), a.in.o.capabilities(a.ctx)...)
	params = append(append(append(params, `,"clientInfo":`...), infoJSON(a.in.o.version)...), '}')
	m, err := c.call(a.ctx, "initialize", params)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return a.notInitialized(e)
	}
	if err != nil {
		return err
	}
	if m.Error != nil {
		return &eraError{fmt.Errorf("initialize: %w", parseRPCError(m.Error))}
	}
	var r struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ServerInfo      json.RawMessage `json:"serverInfo"`
		Instructions    string          `json:"instructions"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil {
		return fmt.Errorf("what answers initialize is no InitializeResult: %w", err)
	}
	if !isLegacyVersion(r.ProtocolVersion) {
		return &eraError{fmt.Errorf("it answers initialize with the protocol version %.40q", r.ProtocolVersion)}
	}
	c.version, c.capabilities, c.server, c.instructions = r.ProtocolVersion, r.Capabilities, r.ServerInfo, r.Instructions
	a.ready()
	return nil
}

func (a *attempt) notInitialized(e *wire.Error) error {
	switch {
	case a.transport == "stdio" && (e.Kind == wire.Lost || e.Kind == wire.NotSent):
		return a.exit(e)
	case e.Kind == wire.HTTPStatus && (isAuth(e) || isThrottled(e) || e.Status >= 500):
		return e
	case e.Kind == wire.HTTPStatus, e.Kind == wire.SessionLost:
		return &eraError{e}
	}
	return e
}

// ready ends a handshake: from here on messages go out as they come.
func (a *attempt) ready() {
	c := a.c
	c.peer.SetVersion(c.version)
	if !c.modern {
		c.notify("notifications/initialized", nil)
	}
	c.peer.Ready()
	c.open()
}

func isAuth(e *wire.Error) bool      { return e.Status == 401 || e.Status == 403 }
func isThrottled(e *wire.Error) bool { return e.Status == 429 }

// rpcError is a JSON-RPC error of the server, to be read by a human.
type rpcError struct {
	code      int
	message   string
	supported []string // of an UnsupportedProtocolVersionError
}

func (e *rpcError) Error() string { return fmt.Sprintf("error %d: %.200s", e.code, e.message) }

func parseRPCError(raw []byte) *rpcError {
	var e struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	_ = json.Unmarshal(raw, &e) // what is missing stays empty
	var data struct {
		Supported []string `json:"supported"`
	}
	_ = json.Unmarshal(e.Data, &data)
	return &rpcError{e.Code, e.Message, data.Supported}
}

// infoJSON is how we name ourselves to servers and clients.
func infoJSON(version string) []byte {
	b, _ := json.Marshal(struct { // two strings always encode
		Name    string `json:"name"`
		Version string `json:"version"`
	}{"agentarmor", version})
	return b
}

// hopMetaJSON is the _meta of our own requests to a modern server: we offer it
// nothing but to read the answer.
func hopMetaJSON(version string) []byte {
	b := []byte(`{"` + wire.MetaPrefix + `protocolVersion":"` + wire.Modern + `","` + wire.MetaPrefix + `clientInfo":`)
	b = append(b, infoJSON(version)...)
	return append(b, `,"`+wire.MetaPrefix+`clientCapabilities":{}}`...)
}
