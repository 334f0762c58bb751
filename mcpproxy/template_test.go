package mcpproxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func mustParse(t *testing.T, raw string) *argTemplate {
	t.Helper()
	tmpl, err := parseArguments(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func TestTemplateRenders(t *testing.T) {
	const args = `{"query":"a \"b\" & <c>\n","limit":9007199254740993,"x":1.50,"user":{"name":"ann","tags":["x", 2]},"no":null,"yes":true,"odd-name":"o","s":"\ud83d"}`
	for raw, want := range map[string]string{
		// A leaf that is one field is that argument, byte for byte.
		`{"n":"{{.limit}}","f":"{{ .x }}"}`:                            `{"n":9007199254740993,"f":1.50}`,
		`{"u":"{{- .user -}}","t":["{{.user.tags}}"]}`:                 `{"u":{"name":"ann","tags":["x", 2]},"t":[["x", 2]]}`,
		`{"who":"{{.user.name}}","b":"{{.yes}}"}`:                      `{"who":"ann","b":true}`,
		`{"null":"{{.no}}","s":"{{.s}}"}`:                              `{"null":null,"s":"\ud83d"}`,
		`{"a":"{{.gone}}","b":1,"c":["{{.gone}}",2]}`:                  `{"b":1,"c":[2]}`,
		`{"a":"{{.gone.deep}}","b":"{{.query.deep}}"}`:                 `{}`,
		`{"a":{"b":"{{.gone}}"}}`:                                      `{"a":{}}`,
		`{"esc":"{{\u002eyes}}"}`:                                      `{"esc":true}`,
		`{"q":"say {{.query}}!"}`:                                      `{"q":"say a \"b\" & <c>\n!"}`,
		`{"q":" {{.limit}}","f":"{{.x}}{{.yes}}"}`:                     `{"q":" 9007199254740993","f":"1.50true"}`,
		`{"j":"tags: {{.user.tags}}"}`:                                 `{"j":"tags: [\"x\",2]"}`,
		`{"u":"/s?q={{urlquery .query}}"}`:                             `{"u":"/s?q=a+%22b%22+%26+%3Cc%3E%0A"}`,
		`{"i":"{{index . \"odd-name\"}}"}`:                             `{"i":"o"}`,
		`{"d":"{{or (index . \"gone\") \"default\"}}"}`:                `{"d":"default"}`,
		`{"c":"{{if eq .user.name \"ann\"}}A{{else}}B{{end}}"}`:        `{"c":"A"}`,
		`{"c":"{{with $u := .user}}{{$u.name}}{{end}}{{/* note */}}"}`: `{"c":"ann"}`,
		`{"c":"{{len .user.tags}} {{slice .user.name 1 2}}"}`:          `{"c":"2 n"}`,
		`{"lit":"}} { \"","n":1e3,"z":null,"a":[ ],"o":{ },"é":"é"}`:   `{"lit":"}} { \"","n":1e3,"z":null,"a":[],"o":{},"é":"é"}`,
		"{\n\"a\":\t[ 1,\n2 ] }":                                       `{"a":[1,2]}`,
		`{}`:                                                           `{}`,
	} {
		got, err := mustParse(t, raw).render([]byte(args))
		if err != nil || string(got) != want {
			t.Errorf("%s\n is %s (%v)\nnot %s", raw, got, err, want)
		}
	}
}

func TestNoTemplateLeavesTheArguments(t *testing.T) {
	tmpl, err := parseArguments(nil)
	if err != nil || tmpl != nil {
		t.Fatal(tmpl, err)
	}
	for in, want := range map[string]string{`{"a": 1.0}`: `{"a": 1.0}`, "null": "{}", "": "{}"} {
		raw := []byte(in)
		if in == "" {
			raw = nil
		}
		if got, err := tmpl.render(raw); err != nil || string(got) != want {
			t.Errorf("%q: %s, %v", in, got, err)
		}
	}
	if got, err := mustParse(t, `{"a":"{{.x}}","b":2}`).render(nil); err != nil || string(got) != `{"b":2}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTemplateFails(t *testing.T) {
	for raw, why := range map[string]string{
		`{"q":"repo {{.gone}}"}`:           "gone",
		`{"q":"repo {{.no}}"}`:             "missing or null",
		`{"q":"{{.no.deep}} "}`:            "deep",
		`{"q":"{{index . \"gone\"}}"}`:     "missing or null",
		`{"q":"{{index .list 5}}"}`:        "out of range",
		`{"q":"{{if .gone}}x{{end}}"}`:     "gone",
		`{"q":"x{{urlquery .no}}"}`:        "missing or null",
		`{"deep":[{"q":"x{{.query.x}}"}]}`: "query",
	} {
		got, err := mustParse(t, raw).render([]byte(`{"query":"q","no":null,"list":[1]}`))
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %s, %v", raw, got, err)
		}
	}
}

func TestCheckTemplate(t *testing.T) {
	if err := CheckTemplate(json.RawMessage(`{"q":"{{.query}}"}`)); err != nil {
		t.Error(err)
	}
	for raw, why := range map[string]string{
		`{`:                                    "no JSON",
		"{\"a\":\"\xff\"}":                     "no JSON",
		``:                                     "no JSON",
		`["{{.a}}"]`:                           "must be an object",
		`"{{.a}}"`:                             "must be an object",
		`{"a":{"q":["{{.query"]}}`:             "arguments.a.q[0]",
		`{"q":"{{}}"}`:                         "arguments.q",
		`{"q":"{{env \"HOME\"}}"}`:             "env",
		`{"q":"x{{text .a}}"}`:                 "text",
		`{"q":"{{range .a}}{{end}}"}`:          "range",
		`{"q":"{{range 99999999999}}{{end}}"}`: "range",
		`{"q":"{{define \"x\"}}{{end}}{{template \"x\"}}"}`:                 "template",
		`{"q":"{{block \"x\" .}}{{end}}"}`:                                  "template",
		`{"q":"{{$a := .q}}{{$a = print $a $a}}"}`:                          "print",
		`{"q":"{{if true}}{{else}}{{printf \"%9999999d\" 1}}{{end}}"}`:      "printf",
		`{"q":"{{with (js .a).b}}{{end}}"}`:                                 "js",
		`{"q":"{{call .a}}"}`:                                               "call",
		`{"q":"{{` + strings.Repeat(" ", maxTemplate) + `.a}}"}`:            "at most 4096 bytes",
		`{"q":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "nested too deeply",
	} {
		if err := CheckTemplate(json.RawMessage(raw)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.60s: %v", raw, err)
		}
	}
}

func TestTemplateIsBounded(t *testing.T) {
	long := func(n int) []byte { return fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat("x", n)) }
	for name, c := range map[string]struct {
		raw  string
		args []byte
	}{
		"arguments":        {`{}`, long(maxRendered)},
		"many fields":      {`{"l":[` + strings.Repeat(`"{{.a}}",`, 100) + `1]}`, long(maxRendered / 10)},
		"many texts":       {`{"l":[` + strings.Repeat(`"x{{.a}}",`, 100) + `1]}`, long(maxRendered / 10)},
		"one text":         {`{"l":"` + strings.Repeat(`{{.a}}`, 100) + `"}`, long(maxRendered / 10)},
		"escapes":          {`{"l":"x{{.a}}"}`, fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat(`\n`, maxRendered/2-10))},
		"escaped by pipes": {`{"l":"{{.a` + strings.Repeat("|urlquery", 400) + `}}"}`, fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat("%", maxRendered/2))},
	} {
		began := time.Now()
		got, err := mustParse(t, c.raw).render(c.args)
		if name == "escapes" {
			if err != nil || len(got) > maxRendered { // twice the characters are the bytes that came in
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), errTooLong.Error()) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: %v", name, took)
		}
	}
}

func TestTemplateConcurrently(t *testing.T) {
	tmpl := mustParse(t, `{"q":"x{{.a}}","r":"{{.a}}"}`)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for range 100 {
				want := fmt.Sprintf(`{"q":"x%d","r":%d}`, n, n)
				if got, err := tmpl.render(fmt.Appendf(nil, `{"a":%d}`, n)); err != nil || string(got) != want {
					t.Errorf("%s, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever a configuration holds and a client sends, the outcome is a JSON object within
// the bounds, or an error.
func FuzzTemplate(f *testing.F) {
	f.Add([]byte(`{"q":"{{.query}} in {{.repo}}","n":["{{.limit}}",{"x":"{{index . \"k\"}}"}]}`), []byte(`{"query":"x","repo":{"a":[1]},"limit":1e9,"k":"\ud83d"}`))
	f.Add([]byte(`{"q":"{{if and .a (not .b)}}{{len .a}}{{else if lt 1 .b}}{{slice .a 1 2 | urlquery}}{{end}}"}`), []byte(`{"a":"x","b":true}`))
	f.Add([]byte(`{"q":"{{with $x := .a}}{{$x.b.c}}{{end}}{{nil}}{{(.a).b}}{{. | index}}"}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, raw, args []byte) {
		tmpl, err := parseArguments(raw)
		if err != nil || tmpl == nil {
			return
		}
		if !json.Valid(args) || args[0] != '{' && string(args) != "null" {
			t.Skip() // the router lets nothing else through
		}
		out, err := tmpl.render(args)
		if err != nil {
			return
		}
		if !json.Valid(out) || out[0] != '{' || len(out) > maxRendered {
			t.Errorf("%s of %s: %s", raw, args, out)
		}
	})
}
