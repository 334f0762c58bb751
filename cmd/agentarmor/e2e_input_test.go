package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// badInput is one message that no client should send, and the error code it
// gets: 0 means a good answer. It is answered under its id as far as that can
// be read, else ("") under null.
type badInput struct {
	name string
	raw  string
	id   string
	code int
}

var badInputs = []badInput{
	{"not JSON", `hello`, "", -32700},
	{"cut JSON", `{"jsonrpc":"2.0","id":70,"method":"ping"`, "70", -32700},
	{"trailing comma", `{"jsonrpc":"2.0","id":71,"method":"ping",}`, "71", -32700},
	{"two values", `{"jsonrpc":"2.0","id":72,"method":"ping"} {}`, "72", -32700},
	{"raw control character", "{\"jsonrpc\":\"2.0\",\"id\":73,\"method\":\"pi\x01ng\"}", "73", -32700},
	{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":74,\"method\":\"ping\",\"params\":{\"a\":\"\xff\"}}", "74", -32700},
	{"batch", `[{"jsonrpc":"2.0","id":75,"method":"ping"}]`, "", -32600},
	{"empty batch", `[]`, "", -32600},
	{"a number", `42`, "", -32600},
	{"a string", `"ping"`, "", -32600},
	{"null", `null`, "", -32600},
	{"no jsonrpc", `{"id":76,"method":"ping"}`, "76", -32600},
	{"another jsonrpc", `{"jsonrpc":"1.0","id":77,"method":"ping"}`, "77", -32600},
	{"method is a number", `{"jsonrpc":"2.0","id":78,"method":1}`, "78", -32600},
	{"no method and no result", `{"jsonrpc":"2.0","id":79}`, "79", -32600},
	{"params is a string", `{"jsonrpc":"2.0","id":80,"method":"ping","params":"x"}`, "80", -32600},
	{"params is a list", `{"jsonrpc":"2.0","id":81,"method":"tools/call","params":[1]}`, "81", -32602},
	{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "", -32600},
	{"id is an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "", -32600},
	{"id is true", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, "", -32600},
	{"unknown method", `{"jsonrpc":"2.0","id":82,"method":"no/such"}`, "82", -32601},
	{"unknown tool", `{"jsonrpc":"2.0","id":83,"method":"tools/call","params":{"name":"no_such"}}`, "83", -32602},
	{"tool name is a number", `{"jsonrpc":"2.0","id":84,"method":"tools/call","params":{"name":7}}`, "84", -32602},
	{"no tool name", `{"jsonrpc":"2.0","id":85,"method":"tools/call","params":{}}`, "85", -32602},
	{"no params", `{"jsonrpc":"2.0","id":86,"method":"tools/call"}`, "86", -32602},
	{"unknown prompt", `{"jsonrpc":"2.0","id":87,"method":"prompts/get","params":{"name":"none"}}`, "87", -32602},
	{"unknown resource", `{"jsonrpc":"2.0","id":88,"method":"resources/read","params":{"uri":"none:x"}}`, "88", -32002},
	{"invalid cursor", `{"jsonrpc":"2.0","id":89,"method":"tools/list","params":{"cursor":"x"}}`, "89", -32602},
	{"unknown log level", `{"jsonrpc":"2.0","id":90,"method":"logging/setLevel","params":{"level":"loud"}}`, "90", -32602},
	{"huge integer id", `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"ping"}`, "123456789012345678901234567890", 0},
	{"id of 2^53+1", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, "9007199254740993", 0},
	{"string id", `{"jsonrpc":"2.0","id":"91","method":"ping"}`, `"91"`, 0},
	{"escaped string id", `{"jsonrpc":"2.0","id":"\u0041\/\"","method":"ping"}`, `"\u0041\/\""`, 0},
	{"id last", `{"method":"ping","params":{"id":5},"id":92,"jsonrpc":"2.0"}`, "92", 0},
	{"unknown members", `{"jsonrpc":"2.0","x":[{}],"id":93,"method":"ping"}`, "93", 0},
}

func (in *badInput) check(c *rawClient, m rpcMessage) {
	c.t.Helper()
	if in.code != 0 {
		c.wantError(m, in.code)
	} else if m.Error != nil {
		c.t.Errorf("got the error %s", m.Error)
	}
	if id := string(m.ID); id != in.id && (in.id != "" || id != "null" && id != "") {
		c.t.Errorf("answered under the id %s, want %s", id, in.id)
	}
}

// isAnswer matches any response.
func isAnswer(m *rpcMessage) bool { return m.Method == "" }

func TestBadInputOverStdio(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "", up("a", "")))
	e.awaitTools("a__echo")
	outer := e.t
	for _, in := range badInputs {
		t.Run(in.name, func(t *testing.T) {
			e.t = t
			defer func() { e.t = outer }()
			e.send(in.raw)
			in.check(e.rawClient, e.wait("answer", isAnswer))
			e.wantText(e.call("a__echo", `{"text":"next"}`), "next")
		})
	}
}

func TestBadInputOverHTTP(t *testing.T) {
	t.Parallel()
	e := serveWeb(t, configFile(t, "", up("a", ", protocol: legacy")))
	e.awaitTools("a__echo")
	outer := e.t
	for _, in := range badInputs {
		t.Run(in.name, func(t *testing.T) {
			e.t = t
			defer func() { e.t = outer }()
			e.send(in.raw)
			m := e.wait("answer", isAnswer)
			in.check(e.rawClient, m)
			if malformed := in.code == -32700 || in.code == -32600; malformed != (m.status == http.StatusBadRequest) {
				t.Errorf("HTTP status %d for error %d", m.status, in.code)
			}
			e.wantText(e.call("a__echo", `{"text":"next"}`), "next")
		})
	}
}

// The second of two requests under one id is refused while the first is under
// way, and does not disturb it.
func TestDuplicateIDs(t *testing.T) {
	t.Parallel()
	config := configFile(t, "", up("a", ""))
	for _, e := range []*endpoint{serveStdio(t, config), serveWeb(t, configFile(t, "", up("a", "")))} {
		e.awaitTools("a__sleep")
		e.send(`{"jsonrpc":"2.0","id":"d","method":"tools/call","params":` + toolCall("a__sleep", `{"ms":1500}`) + `}`)
		polls := 0
		eventually(t, "the first call is under way", func() bool {
			polls++ // each is a call itself
			return strings.Contains(e.result(e.call("a__calls", `{}`)).text(), fmt.Sprintf(`"tools/call":%d`, polls+1))
		})
		e.send(`{"jsonrpc":"2.0","id":"d","method":"tools/call","params":` + toolCall("a__echo", `{"text":"x"}`) + `}`)
		e.wantError(e.answer(`"d"`), -32600)
		e.wantText(e.answer(`"d"`), "slept")
		// Once answered, the id may serve again.
		e.send(`{"jsonrpc":"2.0","id":"d","method":"tools/call","params":` + toolCall("a__echo", `{"text":"again"}`) + `}`)
		e.wantText(e.answer(`"d"`), "again")
	}
}

func TestOversizedInput(t *testing.T) {
	t.Parallel()
	e := serveStdio(t, configFile(t, "limits: {message: 64KiB}", up("a", "")))
	e.awaitTools("a__echo")
	big := strings.Repeat("b", 200<<10)
	m := e.call("a__echo", `{"text":"`+big+`"}`)
	if m.Error == nil || !strings.Contains(string(m.Error), "limit") {
		t.Errorf("the error does not tell of the limit: %.300s", m.raw)
	}
	e.wantText(e.call("a__echo", `{"text":"next"}`), "next")

	web := serveWeb(t, configFile(t, "limits: {message: 64KiB}", up("a", "")))
	web.awaitTools("a__echo")
	resp, body := post(t, web.url, `{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":"`+big+`"}}`, nil)
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("HTTP status %d: %s", resp.StatusCode, body)
	}
	web.wantText(web.call("a__echo", `{"text":"next"}`), "next")
}

// Requests that a web page could make, or that are of no use, are refused
// whatever they hold.
func TestHTTPRefusesForeigners(t *testing.T) {
	t.Parallel()
	e := serveWeb(t, configFile(t, "", up("a", "")))
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, c := range map[string]struct {
		path    string
		headers map[string]string
		status  int
	}{
		"text/plain":     {"", map[string]string{"Content-Type": "text/plain"}, 415},
		"no type":        {"", map[string]string{"Content-Type": ""}, 415},
		"foreign origin": {"", map[string]string{"Origin": "https://evil.example"}, 403},
		"null origin":    {"", map[string]string{"Origin": "null"}, 403},
		"foreign host":   {"", map[string]string{"Host": "evil.example"}, 403},
		"message":        {"/message", map[string]string{"Origin": "https://evil.example"}, 403},
		"no session":     {"", map[string]string{"Mcp-Session-Id": "none"}, 404},
		"own origin":     {"/healthz", map[string]string{"Origin": "http://localhost:1234"}, 405},
	} {
		url := e.url
		if c.path != "" {
			url = strings.TrimSuffix(e.url, "/mcp") + c.path
		}
		if resp, body := post(t, url, ping, c.headers); resp.StatusCode != c.status {
			t.Errorf("%s: HTTP status %d, want %d: %s", name, resp.StatusCode, c.status, body)
		}
	}
}

// post sends one body and reads the whole answer.
func post(t *testing.T, url, body string, headers map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range mcpHeaders(body) {
		req.Header.Set(k, v)
	}
	for k, v := range headers {
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
		if v == "" {
			req.Header.Del(k)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, fmt.Sprintf("%.300s", b)
}
