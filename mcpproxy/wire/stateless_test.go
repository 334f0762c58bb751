package wire

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const toyMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// toyModern returns a request of 2026-07-28 and its headers. params are members.
func toyModern(method, params string) (body string, headers []string) {
	if params != "" {
		params += ","
	}
	return toyRequest(method, "{"+params+toyMeta+"}"), []string{"Mcp-Protocol-Version", Modern, "Mcp-Method", method}
}

func TestHTTPModernChecks(t *testing.T) {
	h := &toyHandler{on: map[string]func(*Session, Message, Stream){
		"nope": func(_ *Session, m Message, st Stream) {
			st.Answer(AppendError(nil, m.ID, CodeMethodNotFound, "Method not found", nil), false)
		},
		"caps": func(_ *Session, m Message, st Stream) {
			st.Answer(AppendError(nil, m.ID, CodeMissingCapability, "Missing", nil), false)
		},
		"params": func(_ *Session, m Message, st Stream) {
			st.Answer(AppendError(nil, m.ID, CodeInvalidParams, "Invalid", nil), false)
		},
		"initialize": func(s *Session, m Message, st Stream) {
			if s.Stateless {
				st.Answer(AppendError(nil, m.ID, CodeMethodNotFound, "Method not found", nil), false)
				return
			}
			st.Answer([]byte(`{"jsonrpc":"2.0","id":7,"result":{"protocolVersion":"2025-11-25"}}`), false)
		},
	}}
	params := func(tool string) []ParamHeader {
		if tool != "sql" {
			return nil
		}
		return []ParamHeader{{"Region", []string{"region"}}, {"N", []string{"n"}}, {"Flag", []string{"flag"}}, {"Deep", []string{"a", "b"}}}
	}
	c := newToyClient(t, HTTPOptions{Handler: h, ParamHeaders: params})
	call := func(args string) string { return `"name":"sql","arguments":{` + args + `}` }
	tests := []struct {
		name    string
		method  string
		params  string
		headers []string // beside those of modern
		status  int
		has     string
	}{
		{"ok", "tools/list", "", nil, 200, `"result"`},
		{"unknown method", "nope", "", nil, 404, `-32601`},
		{"missing capability", "caps", "", nil, 400, `-32021`},
		{"invalid params of the handler", "params", "", nil, 200, `-32602`},
		{"initialize is no method here", "initialize", "", nil, 404, `-32601`},
		{"version header missing", "tools/list", "", []string{"Mcp-Protocol-Version", ""}, 400, `-32020`},
		{"version header differs", "tools/list", "", []string{"Mcp-Protocol-Version", "v999"}, 400, `-32020`},
		{"version header legacy", "tools/list", "", []string{"Mcp-Protocol-Version", Legacy}, 400, `-32020`},
		{"method header missing", "tools/list", "", []string{"Mcp-Method", ""}, 400, `-32020`},
		{"method header differs", "tools/list", "", []string{"Mcp-Method", "prompts/list"}, 400, `-32020`},
		{"method header in another case", "tools/list", "", []string{"Mcp-Method", "TOOLS/LIST"}, 400, `-32020`},
		{"session header is ignored", "tools/list", "", []string{"Mcp-Session-Id", "x"}, 200, `"result"`},

		{"name", "tools/call", `"name":"x"`, []string{"Mcp-Name", "x"}, 200, `"result"`},
		{"name with spaces around", "tools/call", `"name":"x"`, []string{"Mcp-Name", "  x  "}, 200, `"result"`},
		{"name missing", "tools/call", `"name":"x"`, nil, 400, `-32020`},
		{"name differs", "prompts/get", `"name":"x"`, []string{"Mcp-Name", "y"}, 400, `-32020`},
		{"name of nothing", "tools/call", ``, []string{"Mcp-Name", "y"}, 400, `-32020`},
		{"no name at all is the handler's", "tools/call", ``, nil, 200, `"result"`},
		{"name twice in the body", "tools/call", `"name":"x","name":"y"`, []string{"Mcp-Name", "x"}, 400, `-32020`},
		{"uri", "resources/read", `"uri":"a://b"`, []string{"Mcp-Name", "a://b"}, 200, `"result"`},
		{"name in Base64", "tools/call", `"name":"工具"`, []string{"Mcp-Name", "=?base64?5bel5YW3?="}, 200, `"result"`},
		{"name in broken Base64", "tools/call", `"name":"x"`, []string{"Mcp-Name", "=?base64?eA?="}, 400, `-32020`},

		{"no arguments, no headers", "tools/call", call(``), nil, 200, `"result"`},
		{"null, no header", "tools/call", call(`"region":null`), nil, 200, `"result"`},
		{"null, header", "tools/call", call(`"region":null`), []string{"Mcp-Param-Region", "x"}, 400, `-32020`},
		{"absent, header", "tools/call", call(``), []string{"Mcp-Param-Region", "x"}, 400, `-32020`},
		{"value, no header", "tools/call", call(`"region":"x"`), nil, 400, `-32020`},
		{"value", "tools/call", call(`"region":"x"`), []string{"Mcp-Param-Region", "x"}, 200, `"result"`},
		{"value differs", "tools/call", call(`"region":"x"`), []string{"Mcp-Param-Region", "y"}, 400, `-32020`},
		{"value in Base64", "tools/call", call(`"region":"Hello"`), []string{"Mcp-Param-Region", "=?base64?SGVsbG8=?="}, 200, `"result"`},
		{"bad padding", "tools/call", call(`"region":"Hello"`), []string{"Mcp-Param-Region", "=?base64?SGVsbG8?="}, 400, `-32020`},
		{"bad alphabet", "tools/call", call(`"region":"Hello"`), []string{"Mcp-Param-Region", "=?base64?SGVs!!!bG8=?="}, 400, `-32020`},
		{"no sentinel", "tools/call", call(`"region":"=?base64?SGVsbG8="`), []string{"Mcp-Param-Region", "=?base64?SGVsbG8="}, 200, `"result"`},
		{"not ASCII", "tools/call", call(`"region":"é"`), []string{"Mcp-Param-Region", "é"}, 400, `-32020`},
		{"escapes in the body", "tools/call", call(`"region":"\u0078"`), []string{"Mcp-Param-Region", "x"}, 200, `"result"`},
		{"integer", "tools/call", call(`"n":42`), []string{"Mcp-Param-N", "42"}, 200, `"result"`},
		{"integer spelt otherwise", "tools/call", call(`"n":4.2e1`), []string{"Mcp-Param-N", "42.0"}, 200, `"result"`},
		{"other integer", "tools/call", call(`"n":42`), []string{"Mcp-Param-N", "43"}, 400, `-32020`},
		{"integers that floats confuse", "tools/call", call(`"n":9007199254740993`), []string{"Mcp-Param-N", "9007199254740992"}, 400, `-32020`},
		{"integer as hex", "tools/call", call(`"n":42`), []string{"Mcp-Param-N", "0x2a"}, 400, `-32020`},
		{"boolean", "tools/call", call(`"flag":false`), []string{"Mcp-Param-Flag", "false"}, 200, `"result"`},
		{"boolean in another case", "tools/call", call(`"flag":true`), []string{"Mcp-Param-Flag", "True"}, 400, `-32020`},
		{"nested", "tools/call", call(`"a":{"b":"x"}`), []string{"Mcp-Param-Deep", "x"}, 200, `"result"`},
		{"nested, no header", "tools/call", call(`"a":{"b":"x"}`), nil, 400, `-32020`},
		{"argument twice", "tools/call", call(`"region":"x","region":"y"`), []string{"Mcp-Param-Region", "x"}, 400, `-32020`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, headers := toyModern(tt.method, tt.params)
			if strings.Contains(tt.params, `"name":"sql"`) {
				headers = append(headers, "Mcp-Name", "sql")
			}
			resp, got := c.post(body, append(headers, tt.headers...)...)
			if resp.StatusCode != tt.status || !strings.Contains(got, tt.has) || !strings.Contains(got, `"id":7`) {
				t.Errorf("%d %s, want %d with id 7 and %s", resp.StatusCode, got, tt.status, tt.has)
			}
			if resp.Header.Get("Mcp-Session-Id") != "" {
				t.Error("a session id for a stateless request")
			}
		})
	}
	if n, twice := h.closes(); n == 0 || twice {
		t.Errorf("%d ephemeral sessions closed (one twice: %v)", n, twice)
	}
}

func TestHTTPEras(t *testing.T) {
	tests := []struct {
		name, version, body string
		status              int
		has                 string
	}{
		{"initialize with a modern header", Modern, toyRequest("initialize", `{"protocolVersion":"2025-11-25"}`), 200, `"result"`},
		{"initialize with an unknown header", "v999", toyRequest("initialize", `{"protocolVersion":"2025-11-25"}`), 400, `-32022`},
		{"_meta missing", Modern, toyRequest("server/discover", `{}`), 400, `-32602`},
		{"version missing in _meta", Modern, toyRequest("server/discover", `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}`), 400, `-32602`},
		{"capabilities missing in _meta", Modern, toyRequest("server/discover", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`), 400, `-32602`},
		{"unknown version", "v999", toyRequest("server/discover", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"v999"}}`), 400,
			`"data":{"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"v999"}`},
		{"response", Modern, `{"jsonrpc":"2.0","id":1,"result":{}}`, 400, `-32600`},
		{"notification", Modern, `{"jsonrpc":"2.0","method":"notifications/x"}`, 202, ""},
		{"cancelled", Modern, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, 202, ""},
	}
	h := &toyHandler{}
	c := newToyClient(t, HTTPOptions{Handler: h})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := c.post(tt.body, "Mcp-Protocol-Version", tt.version, "Mcp-Method", "server/discover")
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.has) {
				t.Errorf("%d %s, want %d with %s", resp.StatusCode, body, tt.status, tt.has)
			}
		})
	}
	if got := h.methods(); got != "initialize notifications/x" {
		t.Errorf("the handler saw %q", got)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if resp, _ := c.call(method, "/mcp", "", "Mcp-Protocol-Version", Modern); resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

func TestHTTPModernStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listens := make(chan Stream, 1)
		h := &toyHandler{on: map[string]func(*Session, Message, Stream){
			"subscriptions/listen": func(_ *Session, _ Message, st Stream) {
				listens <- st
				time.AfterFunc(time.Hour, func() { st.Send(toyNote(1), false) })
			},
		}}
		c := newToyClient(t, HTTPOptions{Handler: h})
		body, headers := toyModern("subscriptions/listen", "")
		ctx, leave := context.WithCancel(t.Context())
		begin := time.Now()
		s := c.open(ctx, "POST", "/mcp", body, headers...)
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("the stream began after %v: a listen waits for its first message", d)
		}
		s.expect(t, `event: message|data: {"jsonrpc":"2.0","method":"n1"}`, ": keep-alive")
		leave()
		synctest.Wait()
		listening := <-listens
		<-leaving(listening)
		if err := listening.Send(toyNote(2), false); err != ErrGone {
			t.Errorf("Send after leaving: %v, want ErrGone", err)
		}
		if n, _ := h.closes(); n != 1 {
			t.Errorf("%d sessions closed, want 1", n)
		}
	})
}

func TestReadMeta(t *testing.T) {
	m := readMeta([]byte(`{"name":"x","_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"roots":{}}}}`))
	if m.version != Modern || !m.modern || string(m.caps) != `{"roots":{}}` {
		t.Errorf("%+v", m)
	}
	for _, params := range []string{"", "{}", `{"_meta":null}`, `{"_meta":[]}`, `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}`,
		`{"_meta":{"io.modelcontextprotocol/protocolVersion":1}}`} {
		if m := readMeta([]byte(params)); m.modern {
			t.Errorf("%s is taken for modern", params)
		}
	}
}
