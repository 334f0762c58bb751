package mcpproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// offers is a source with resources; a text with braces is a template.
func offers(name string, uris ...string) source {
	l := &listing{}
	for _, u := range uris {
		if strings.Contains(u, "{") {
			l.Templates = append(l.Templates, json.RawMessage(fmt.Sprintf(`{"uriTemplate":%q,"name":"t"}`, u)))
		} else {
			l.Resources = append(l.Resources, json.RawMessage(fmt.Sprintf(`{"uri":%q,"name":"r"}`, u)))
		}
	}
	return source{name: name, prefix: name, list: l, ready: true}
}

func TestResources(t *testing.T) {
	c := buildCatalog(ownEntries{}, []source{
		offers("a", "file:///one", "file:///both", "note://{id}", "db://{+path}", "same://{x}", "agentarmor://status"),
		offers("B ü/1", "file:///two", "file:///both", "db://users/{id}", "same://{x}", "agentarmor://status/{upstream}"),
	})
	const two = "agentarmor-up://B%20%C3%BC%2F1/"
	wantResources := `{"resources":[{"uri":"` + two + `ZmlsZTovLy9ib3Ro","name":"r"},{"uri":"file:///two","name":"r"},` +
		`{"uri":"agentarmor-up://a/YWdlbnRhcm1vcjovL3N0YXR1cw","name":"r"},{"uri":"agentarmor-up://a/ZmlsZTovLy9ib3Ro","name":"r"},{"uri":"file:///one","name":"r"}]}`
	if diff := cmp.Diff(wantResources, string(c.list(resources, legacyView))); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	wantTemplates := `{"resourceTemplates":[{"uriTemplate":"` + two + `=agentarmor://status/{upstream}","name":"t"},{"uriTemplate":"` + two + `=same://{x}","name":"t"},{"uriTemplate":"db://users/{id}","name":"t"},` +
		`{"uriTemplate":"agentarmor-up://a/=same://{x}","name":"t"},{"uriTemplate":"db://{+path}","name":"t"},{"uriTemplate":"note://{id}","name":"t"}]}`
	if diff := cmp.Diff(wantTemplates, string(c.list(templates, legacyView))); diff != "" {
		t.Errorf("templates (-want +got):\n%s", diff)
	}
	for uri, want := range map[string]string{
		"file:///one":                            "a file:///one",
		"file:///two":                            "B ü/1 file:///two",
		two + "ZmlsZTovLy9ib3Ro":                 "B ü/1 file:///both",
		"agentarmor-up://a/ZmlsZTovLy9ib3Ro":     "a file:///both",
		"agentarmor-up://A/ZmlsZTovLy9ib3Ro":     "a file:///both",
		"agentarmor-up://a/ZmlsZTovLy9ib3Ro==":   "a file:///both",
		"agentarmor-up://a/" + "ZmlsZTovLy9vbmU": "a file:///one",
		two + "=same://7?q=#f":                   "B ü/1 same://7?q=#f",
		two + "=same://{x}":                      "B ü/1 same://{x}",
		two + "=agentarmor://status/x":           "B ü/1 agentarmor://status/x",
		"note://42":                              "a note://42",
		"note://{id}":                            "a note://{id}",
		"db://{+path}":                           "a db://{+path}",
		"db://x/y/z":                             "a db://x/y/z",
		"agentarmor://status":                    " agentarmor://status",
		"agentarmor://anything":                  " agentarmor://anything",
	} {
		upstream, original, err := c.resource(uri)
		if got := upstream + " " + original; err != nil || got != want {
			t.Errorf("%s leads to %s, %v; want %s", uri, got, err, want)
		}
	}
}

func TestResourceErrors(t *testing.T) {
	c := buildCatalog(ownEntries{}, []source{
		offers("a", "file:///both", "db://{+path}", "same://{x}", "bad://{"),
		offers("b", "file:///both", "db://users/{id}", "same://{x}"),
	})
	for uri, want := range map[string]string{
		"file:///both":         "ambiguous resource: file:///both is one of agentarmor-up://a/ZmlsZTovLy9ib3Ro, agentarmor-up://b/ZmlsZTovLy9ib3Ro",
		"db://users/7":         "ambiguous resource: db://users/7 is one of agentarmor-up://a/ZGI6Ly91c2Vycy83, agentarmor-up://b/ZGI6Ly91c2Vycy83",
		"same://7":             "ambiguous resource: same://7 is one of agentarmor-up://a/c2FtZTovLzc, agentarmor-up://b/c2FtZTovLzc",
		"same://{x}":           "ambiguous resource: same://{x} is one of agentarmor-up://a/c2FtZTovL3t4fQ, agentarmor-up://b/c2FtZTovL3t4fQ",
		"file:///none":         "unknown resource: file:///none",
		"bad://x":              "unknown resource: bad://x",
		"agentarmor-up://a":    "unknown resource: agentarmor-up://a",
		"agentarmor-up://c/YQ": "unknown resource: agentarmor-up://c/YQ",
		"agentarmor-up://a/*":  "unknown resource: agentarmor-up://a/*",
		"agentarmor-up://%/YQ": "unknown resource: agentarmor-up://%/YQ",
		"":                     "unknown resource: ",
	} {
		_, _, err := c.resource(uri)
		e, ok := errors.AsType[*nameError](err)
		if !ok || e.Error() != want || e.ambiguous != strings.HasPrefix(want, "ambiguous") {
			t.Errorf("%s gives %v; want %s", uri, err, want)
		}
	}
}

func TestUpFormOutlivesTheCollision(t *testing.T) {
	c := buildCatalog(ownEntries{}, []source{offers("a", "file:///both")})
	if up, original, err := c.resource(upURI("a", "file:///both")); err != nil || up != "a" || original != "file:///both" {
		t.Errorf("got %q %q %v", up, original, err)
	}
	if got := string(c.list(resources, legacyView)); got != `{"resources":[{"uri":"file:///both","name":"r"}]}` {
		t.Errorf("alone again it is listed plainly: %s", got)
	}
}

func TestUnlistedURIs(t *testing.T) {
	none, unknown := up("tools", "x"), source{name: "starting"}
	one, other := offers("one", "x://1"), source{name: "other", list: &listing{Capabilities: json.RawMessage(`{"resources":{}}`)}}
	for name, tc := range map[string]struct {
		sources []source
		want    string
	}{
		"the only one with resources": {[]source{none, one}, "one"},
		"declares them only":          {[]source{none, other}, "other"},
		"two":                         {[]source{one, other}, ""},
		"one is not known":            {[]source{one, unknown}, ""},
		"the other one is disabled":   {[]source{{name: "off", ready: true}, one}, "one"},
		"nobody":                      {[]source{none}, ""},
	} {
		if got, _, _ := buildCatalog(ownEntries{}, tc.sources).resource("x://unlisted"); got != tc.want {
			t.Errorf("%s: leads to %q, want %q", name, got, tc.want)
		}
	}
}

func TestExposedURI(t *testing.T) {
	c := buildCatalog(ownEntries{}, []source{
		offers("a", "file:///one", "file:///both", "db://{+path}", "agentarmor://status"),
		offers("b", "file:///both", "db://users/{id}"),
	})
	for _, tc := range []struct{ upstream, uri, want string }{
		{"a", "file:///one", "file:///one"},
		{"b", "file:///one", upURI("b", "file:///one")},
		{"a", "file:///both", upURI("a", "file:///both")},
		{"a", "db://x", "db://x"},
		{"a", "db://users/7", upURI("a", "db://users/7")},
		{"a", "agentarmor://status", upURI("a", "agentarmor://status")},
		{"a", "linked://x", "linked://x"}, // from a result, where it was not rewritten
	} {
		got := c.exposedURI(tc.upstream, tc.uri)
		if got != tc.want {
			t.Errorf("%s of %s is exposed as %s, want %s", tc.uri, tc.upstream, got, tc.want)
		}
		if tc.uri == "linked://x" {
			continue
		}
		if up, original, err := c.resource(got); err != nil || up != tc.upstream || original != tc.uri {
			t.Errorf("%s leads back to %q %q %v", got, up, original, err)
		}
	}
}

func TestTemplatesThatCannotBeMatched(t *testing.T) {
	vars := make([]string, 2000)
	for i := range vars {
		vars[i] = fmt.Sprint("v", i)
	}
	c := buildCatalog(ownEntries{}, []source{offers("a", "x://{"+strings.Join(vars, ",")+"}", "y://{+p}"), offers("b", "z://1")})
	if len(c.entries[templates]) != 2 || len(c.quarantined["a"]) != 1 {
		t.Errorf("%d templates listed, quarantined %v", len(c.entries[templates]), c.quarantined)
	}
	if _, _, err := c.resource("y://" + strings.Repeat("a", 1<<20)); err == nil {
		t.Error("a URI of 1 MB was matched")
	}
}

func FuzzUpURI(f *testing.F) {
	f.Add("github", "file:///x")
	f.Add("a b/ü%", "")
	f.Fuzz(func(t *testing.T, name, uri string) {
		x := uriIndex{upstreams: []string{name}}
		for _, form := range []string{upURI(name, uri), upScheme + strings.TrimPrefix(upURI(name, ""), upScheme) + "=" + uri} {
			up, original, ok := x.fromUp(strings.TrimPrefix(form, upScheme))
			if !ok || up != name || original != uri {
				t.Errorf("%q of %q came back as %q of %q, %v", uri, name, original, up, ok)
			}
		}
	})
}
