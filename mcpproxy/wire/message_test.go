package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     Message
	}{
		{"request", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":[1,{}]}}`,
			Message{ID: []byte(`1`), Method: "tools/call", Params: []byte(`{"a":[1,{}]}`)}},
		{"white space", " { \"id\" : \"x\" , \"method\" : \"ping\" ,\t\"jsonrpc\" : \"2.0\" } ",
			Message{ID: []byte(`"x"`), Method: "ping"}},
		{"notification", `{"jsonrpc":"2.0","method":"my/own"}`, Message{Method: "my/own"}},
		{"result", `{"jsonrpc":"2.0","result":null,"id":"a1"}`, Message{ID: []byte(`"a1"`), Result: []byte(`null`)}},
		{"error", `{"jsonrpc":"2.0","id":null,"error":{"code":1}}`, Message{ID: []byte(`null`), Error: []byte(`{"code":1}`)}},
		{"error without id", `{"jsonrpc":"2.0","error":{}}`, Message{Error: []byte(`{}`)}},
		{"null beside the result", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, Message{ID: []byte(`1`), Result: []byte(`{}`)}},
		{"null beside the error", `{"jsonrpc":"2.0","id":1,"result":null,"error":{}}`, Message{ID: []byte(`1`), Error: []byte(`{}`)}},
		{"null params", `{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`, Message{ID: []byte(`1`), Method: "ping"}},
		{"array params", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, Message{ID: []byte(`1`), Method: "ping", Params: []byte(`[]`)}},
		{"escaped names", `{"jsonr\u0070c":"2\u002e0","id":1,"me\u0074hod":"p\u0069ng"}`, Message{ID: []byte(`1`), Method: "ping"}},
		{"odd keys", `{"jsonrpc":"2.0","i\"d":5,"ID":6,"":7,"id":1,"method":"ping"}`, Message{ID: []byte(`1`), Method: "ping"}},
		{"byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, Message{ID: []byte(`1`), Method: "ping"}},
		{"2^53+1", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, Message{ID: []byte(`9007199254740993`), Method: "ping"}},
		{"1e400", `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, Message{ID: []byte(`1e400`), Method: "ping"}},
		{"100 digits", `{"jsonrpc":"2.0","id":` + strings.Repeat("9", 100) + `,"method":"ping"}`, Message{ID: bytes.Repeat([]byte("9"), 100), Method: "ping"}},
		{"lone surrogate, U+2028", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\ud83d 你好 😀 ` + "\u2028" + `"}}`,
			Message{ID: []byte(`1`), Method: "ping", Params: []byte(`{"a":"\ud83d 你好 😀 ` + "\u2028" + `"}`)}},
		{"line breaks", "{\n\"jsonrpc\": \"2.0\",\r\"id\":1,\"method\":\"ping\",\"params\":{\n \"a\": \"x \\\" y\"}}",
			Message{ID: []byte(`1`), Method: "ping", Params: []byte(`{"a":"x \" y"}`)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":7,"method":"x","params":`
	for _, tt := range []struct {
		in    string
		code  int
		id    string
		quiet bool
	}{
		{``, CodeParse, "", false},
		{`hello`, CodeParse, "", false},
		{"\x1b[32mready\x1b[0m", CodeParse, "", false},
		{`{"jsonrpc":"2.0","id":7`, CodeParse, "", false}, // the id may go on
		{`{"jsonrpc":"2.0","id":7,"method":"x"`, CodeParse, "7", false},
		{`{"jsonrpc":"2.0","id":7,"method":"x"} {}`, CodeParse, "7", false},
		{`{"jsonrpc":"2.0","id":"a7","result":{"a":`, CodeParse, `"a7"`, true},
		{call + "{\"a\":\"\xff\"}}", CodeParse, "7", false},
		{"{\"jsonrpc\":\"2.0\",\"result\":\"\xff\",\"id\":7}", CodeParse, "7", true},
		{call + "{\"a\":\"\x01\"}}", CodeParse, "7", false},
		{call + `{"a":"\x"}}`, CodeParse, "7", false},
		{call + `{"a":"\u12g4"}}`, CodeParse, "7", false},
		{call + `{"a":01}}`, CodeParse, "7", false},
		{call + `{"a":1.}}`, CodeParse, "7", false},
		{call + `{"a":1e}}`, CodeParse, "7", false},
		{call + `{"a":-}}`, CodeParse, "7", false},
		{call + `{"a":nul}}`, CodeParse, "7", false},
		{call + `{"a":1,}}`, CodeParse, "7", false},
		{call + `{"a"}}`, CodeParse, "7", false},
		{call + `[1}}`, CodeParse, "7", false},
		{call + strings.Repeat("[", 1100) + strings.Repeat("]", 1100) + "}", CodeParse, "7", false},
		{strings.Repeat("[", 1<<20), CodeParse, "", false},
		{`[]`, CodeInvalidRequest, "", false},
		{`[{"jsonrpc":"2.0","id":7,"method":"x"}]`, CodeInvalidRequest, "", false},
		{`"text"`, CodeInvalidRequest, "", false},
		{`{}`, CodeInvalidRequest, "", false},
		{`{"id":7,"method":"x"}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"1.0","id":7,"method":"x"}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":2.0,"id":7,"method":"x"}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":7}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":7,"method":1}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":7,"method":""}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":null,"method":"x"}`, CodeInvalidRequest, "", false},
		{`{"jsonrpc":"2.0","id":{},"method":"x"}`, CodeInvalidRequest, "", false},
		{`{"jsonrpc":"2.0","id":[],"method":"x"}`, CodeInvalidRequest, "", false},
		{`{"jsonrpc":"2.0","id":true,"method":"x"}`, CodeInvalidRequest, "", false},
		{call + `1}`, CodeInvalidRequest, "7", false},
		{call + `"a"}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","method":"x","params":1}`, CodeInvalidRequest, "", true},
		{`{"jsonrpc":"2.0","id":7,"id":8,"method":"x"}`, CodeInvalidRequest, "", false},
		{`{"jsonrpc":"2.0","id":7,"method":"x","\u006dethod":"y"}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":7,"method":"x","result":1}`, CodeInvalidRequest, "7", false},
		{`{"jsonrpc":"2.0","id":7,"result":1,"error":{}}`, CodeInvalidRequest, "7", true},
		{`{"jsonrpc":"2.0","id":7,"error":"x"}`, CodeInvalidRequest, "7", true},
		{`{"jsonrpc":"2.0","result":1}`, CodeInvalidRequest, "", true},
	} {
		_, err := Parse([]byte(tt.in))
		pe, ok := errors.AsType[*ParseError](err)
		if !ok {
			t.Errorf("%.60q: got error %v", tt.in, err)
			continue
		}
		if pe.Code != tt.code || string(pe.ID) != tt.id || pe.Quiet != tt.quiet {
			t.Errorf("%.60q: got %d, id %q, quiet %v (%v)", tt.in, pe.Code, pe.ID, pe.Quiet, pe)
		}
	}
}

func TestParseNamesBatches(t *testing.T) {
	if _, err := Parse([]byte(`[]`)); !strings.Contains(err.Error(), "batches are not supported") {
		t.Error(err)
	}
}

// Each special byte must be seen at every offset of the 8 and 32 byte steps.
func TestParseStringOffsets(t *testing.T) {
	for n := range 80 {
		for _, bad := range []string{"\x00", "\x1f", "\n", "\xff", "\xc0\x80", "\xed\xa0\x80", "\\", "\""} {
			in := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("a", n) + bad + strings.Repeat("x", 40) + `"}`
			if _, err := Parse([]byte(in)); err == nil {
				t.Errorf("%q accepted after %d bytes", bad, n)
			}
		}
		for _, good := range []string{" ", "!", "\x7f", "é", "😀", `\"`, `\\`, "#", "[", "]"} {
			in := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("a", n) + good + strings.Repeat("x", 40) + `"}`
			if _, err := Parse([]byte(in)); err != nil {
				t.Errorf("%q refused after %d bytes: %v", good, n, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":[1.5e-3,true,null,"\u00e9\ud83d"]}}`,
		`{"jsonrpc":"2.0","id":"a1","result":{"x":[[],{}]}}`, `{"jsonrpc":"2.0","id":-0,"error":{"code":-1}}`,
		"\ufeff[1, 2]", `"\ud83d\ude00"`, `{"a":1,"a":2}`, "{\"jsonrpc\":\"2.0\",\n\"method\":\"x\"}", `0.0E+1`, "\"\xff\"",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		text := bytes.TrimPrefix(b, []byte("\ufeff"))
		valid := json.Valid(text) && utf8.Valid(text)
		m, err := Parse(bytes.Clone(b))
		if pe, ok := errors.AsType[*ParseError](err); err != nil {
			if !ok || (pe.Code == CodeParse) == valid {
				t.Fatalf("valid %v, got %v", valid, err)
			}
			return
		}
		if !valid {
			t.Fatal("accepted what is not JSON")
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		method, _ := json.Marshal(m.Method)
		for name, got := range map[string][]byte{"id": m.ID, "method": method, "params": m.Params, "result": m.Result, "error": m.Error} {
			if (got == nil || string(got) == `""`) && (want[name] == nil || string(want[name]) == "null") {
				continue
			}
			if !sameJSON(got, want[name]) {
				t.Errorf("%s: got %s, want %s", name, got, want[name])
			}
			if bytes.ContainsAny(got, "\r\n") {
				t.Errorf("%s holds a line break", name)
			}
		}
	})
}

// sameJSON compares values, numbers by their spelling.
func sameJSON(a, b []byte) bool {
	return cmp.Equal(decode(a), decode(b))
}

func decode(b []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return fmt.Sprintf("%v in %q", err, b)
	}
	return v
}

// sample returns a tools/call of about n bytes.
func sample(n int) []byte {
	text := strings.Repeat("The quick brown fox jumps over it. ", n/35+1)
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":12345,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%s"}}}`,
		text[:max(n-98, 0)])
}

func BenchmarkParse(b *testing.B) {
	text := strings.Repeat(`func main() {\n\tfmt.Println(\"hello\")\n}\n`, 2300)
	for _, bb := range []struct {
		name string
		in   []byte
	}{
		{"100B", sample(100)},
		{"100kB", sample(100_000)},
		{"100kB-escapes", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}`, text)},
		{"100kB-chinese", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}`, strings.Repeat("你好", 16_000))},
		{"100kB-numbers", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"rows":[%s0]}}`, strings.Repeat(`{"a":1,"b":22.5},`, 5_900))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(bb.in)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(bb.in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
