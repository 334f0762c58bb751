package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestRewrite(t *testing.T) {
	v := func(key, value string) Edit { return Edit{key, []byte(value)} }
	for _, tt := range []struct {
		obj   string
		edits []Edit
		want  string
	}{
		{`{"a":1, "b" : {"x":[1,"}"]} }`, []Edit{v("a", "2")}, `{"a":2, "b" : {"x":[1,"}"]} }`},
		{`{"a":1, "b" : {"x":[1,"}"]} }`, []Edit{v("b", "2")}, `{"a":1, "b" : 2 }`},
		{`{"a":1}`, []Edit{v("b", "2"), v("c", `"x"`)}, `{"a":1,"b":2,"c":"x"}`},
		{`{ }`, []Edit{v("b", "2")}, `{"b":2 }`},
		{``, []Edit{v("b", "2")}, `{"b":2}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{{"a", nil}}, `{"b":2,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{{"b", nil}}, `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3 }`, []Edit{{"c", nil}}, `{"a":1,"b":2 }`},
		{`{"a":1,"b":2,"c":3}`, []Edit{{"a", nil}, {"b", nil}}, `{"c":3}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{{"a", nil}, {"c", nil}}, `{"b":2}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{{"b", nil}, {"c", nil}}, `{"a":1}`},
		{`{ "a" : 1 , "b" : 2 }`, []Edit{{"b", nil}, {"a", nil}}, `{  }`},
		{`{"a":1}`, []Edit{{"a", nil}, v("b", "2")}, `{"b":2}`},
		{`{"a":1,"b":2}`, []Edit{{"a", nil}, v("b", "3"), v("c", "4")}, `{"b":3,"c":4}`},
		{`{"a":1,"b":2,"a":3}`, []Edit{v("a", "9")}, `{"a":9,"b":2}`},
		{`{"\u0061":1,"b":"\\"}`, []Edit{v("a", "9")}, `{"\u0061":9,"b":"\\"}`},
		{`[1]`, []Edit{v("a", "9")}, `[1]`},
	} {
		if got := string(Rewrite([]byte("x"), []byte(tt.obj), tt.edits...)); got != "x"+tt.want {
			t.Errorf("%s %v: got %s, want x%s", tt.obj, tt.edits, got, tt.want)
		}
	}
}

func TestGetAndRanges(t *testing.T) {
	obj := []byte(`{"a" : "x\"}" , "\u0062":[1, {"c":[]} ,null], "a":2,"n":-1.5e3}`)
	for key, want := range map[string]string{"a": `"x\"}"`, "b": `[1, {"c":[]} ,null]`, "n": "-1.5e3", "c": ""} {
		if got := string(Get(obj, key)); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
	var got []string
	for k, v := range Members(obj) {
		got = append(got, k+"="+string(v))
	}
	for v := range Elements(Get(obj, "b")) {
		got = append(got, string(v))
	}
	want := []string{`a="x\"}"`, `b=[1, {"c":[]} ,null]`, "a=2", "n=-1.5e3", "1", `{"c":[]}`, "null"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, other := range []string{"", "1", "[]", `"a"`, "{}", "{ }", "[ ]", "null"} {
		for range Members([]byte(other)) {
			t.Errorf("%q has members", other)
		}
		for range Elements([]byte(other)) {
			t.Errorf("%q has elements", other)
		}
		if Get([]byte(other), "a") != nil {
			t.Errorf("%q has a", other)
		}
	}
}

func TestStrings(t *testing.T) {
	for raw, want := range map[string]string{
		`"plain"`: "plain", `""`: "", `"\"\\\/\b\f\n\r\t\u00e9"`: "\"\\/\b\f\n\r\té", `"\ud83d\ude00"`: "😀",
		`"\ud83d"`: "\ufffd", `"\ud83dx"`: "\ufffdx", `"\ude00\ud83d"`: "\ufffd\ufffd", `"\ud83d\u0041"`: "\ufffdA",
	} {
		if got, ok := String([]byte(raw)); !ok || got != want {
			t.Errorf("%s: got %q %v", raw, got, ok)
		}
	}
	for _, raw := range []string{"", "1", "null", "{}"} {
		if _, ok := String([]byte(raw)); ok {
			t.Errorf("%q is no string", raw)
		}
	}
	for s, want := range map[string]string{
		"<a&b>\u2028": "\"<a&b>\u2028\"", "\x00\x1f\"\\\n\r\t": `"\u0000\u001f\"\\\n\r\t"`, "a\xffb\xe4\xbd": `"a` + "\ufffdb\ufffd\ufffd" + `"`, "é\x7f": "\"é\x7f\"",
	} {
		if got := string(AppendString(nil, s)); got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	}
}

func TestIDs(t *testing.T) {
	for _, n := range []uint64{0, 1, 17, 1<<64 - 1} {
		if got, ok := ParseID(AppendID(nil, n)); !ok || got != n {
			t.Errorf("id %d: got %d %v", n, got, ok)
		}
		if got, ok := ParseToken(AppendToken(nil, n)); !ok || got != n {
			t.Errorf("token %d: got %d %v", n, got, ok)
		}
	}
	if got := string(AppendID(nil, 17)) + string(AppendToken(nil, 17)); got != `"a17""p17"` {
		t.Error(got)
	}
	for _, raw := range []string{"", "17", `"17"`, `"a"`, `"a1`, `"p1"`, `"a01"`, `"a-1"`, `"a+1"`, `"a1x"`, `"a18446744073709551616"`, `"a999999999999999999999999"`, "null"} {
		if _, ok := ParseID([]byte(raw)); ok {
			t.Errorf("%q is not ours", raw)
		}
	}
}

func TestBuild(t *testing.T) {
	for got, want := range map[string]string{
		string(AppendRequest(nil, []byte(`"a1"`), "tools/call", []byte(`{}`))): `{"jsonrpc":"2.0","id":"a1","method":"tools/call","params":{}}`,
		string(AppendRequest(nil, []byte(`1`), "ping", nil)):                   `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		string(AppendNotification(nil, "n", []byte(`{}`))):                     `{"jsonrpc":"2.0","method":"n","params":{}}`,
		string(AppendResult(nil, []byte(`1`), []byte(`{}`))):                   `{"jsonrpc":"2.0","id":1,"result":{}}`,
		string(AppendErrorRaw(nil, []byte(`1`), []byte(`{"code":1}`))):         `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`,
		string(AppendError(nil, nil, -32700, `a"b`, nil)):                      `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"a\"b"}}`,
		string(AppendError(nil, []byte(`2`), 5, "m", []byte(`[1]`))):           `{"jsonrpc":"2.0","id":2,"error":{"code":5,"message":"m","data":[1]}}`,
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if _, err := Parse([]byte(got)); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[1,2,{"c":"\\\""}]}`), "a", "x")
	f.Add([]byte(` { "a" : null , "\u0061" : { } } `), "b", "\"\\\n\xff")
	f.Fuzz(func(t *testing.T, b []byte, key, text string) {
		if !json.Valid(b) || !utf8.Valid(b) || !utf8.ValidString(key) {
			return
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, b); err != nil {
			t.Fatal(err)
		}
		if got := Compact(b); !bytes.Equal(got, compact.Bytes()) {
			t.Fatalf("compacted to %s, want %s", got, compact.Bytes())
		}
		value := AppendString(nil, text)
		if s, ok := String(value); !ok || s != strings.ToValidUTF8(text, "\ufffd") && utf8.ValidString(text) {
			t.Errorf("%q came back as %q", text, s)
		}
		obj := bytes.TrimSpace(b)
		var want map[string]any
		if obj[0] != '{' || json.Unmarshal(obj, &want) != nil {
			return
		}
		want[key] = decode(value)
		set := Rewrite(nil, obj, Edit{key, value})
		var got map[string]any
		if err := json.Unmarshal(set, &got); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v %v", set, err, cmp.Diff(want, got))
		}
		if g := Get(set, key); !bytes.Equal(g, value) {
			t.Errorf("%s: got %s", set, g)
		}
		delete(want, key)
		unset := Rewrite(nil, set, Edit{key, nil})
		got = nil
		if err := json.Unmarshal(unset, &got); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v %v", unset, err, cmp.Diff(want, got))
		}
		if same := Rewrite(nil, obj); !bytes.Equal(same, obj) {
			t.Errorf("%s became %s", obj, same)
		}
	})
}

func BenchmarkRewrite(b *testing.B) {
	for name, n := range map[string]int{"100B": 100, "100kB": 100_000} {
		m, err := Parse(sample(n))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(n))
			buf := make([]byte, 0, n+100)
			for b.Loop() {
				buf = Rewrite(buf[:0], m.Params, Edit{"name", []byte(`"other"`)}, Edit{"_meta", []byte(`{"progressToken":"p1"}`)})
			}
		})
	}
}
