package mcpproxy

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
)

// catalog is everything the endpoint lists and how names lead back to
// upstreams. It never changes after buildCatalog; all methods are safe for
// concurrent use.
type catalog struct {
	entries     [kinds][]*entry // in the order they are listed
	toolNames   names
	promptNames names
	uris        uriIndex
	ttl         int64 // milliseconds
	public      bool
	intro       string // what instructions returns

	// quarantined holds per upstream what is not listed, or not to every
	// client, with the reason: tools by name, the rest as "prompt x",
	// "resource x", "template x".
	quarantined map[string]map[string]string

	views [kinds][4]struct {
		once sync.Once
		raw  []byte
	}
}

// entry is one tool, prompt, resource or template.
type entry struct {
	kind     listKind
	exposed  string // name or URI the clients see; own tools: dotted
	original string // name or URI the upstream knows
	upstream string // "" = own

	raw     json.RawMessage // as the upstream sent it
	rawName json.RawMessage // original as it stands in raw
	listed  json.RawMessage // raw with the exposed name
	safe    json.RawMessage // own tools: raw with underscores for dots; else listed

	params     []paramHeader // tools: arguments that HTTP headers repeat
	legacyOnly string        // tools: why 2026-07-28 clients do not see it, "" if they do
	hidden     bool          // known by name, but in no list
}

// source is one upstream as the catalog sees it.
type source struct {
	name, prefix string
	allow, deny  []string          // patterns of original tool names
	list         *listing          // live or remembered, nil if there is none
	ready        bool              // list is what it offers now; without a list: nothing, as if it were disabled
	hidden       bool              // its tools are in no list
	suspects     map[string]string // tools that are in no list, with the reason
}

// silent tells whether the upstream offers nothing and will not.
func (s *source) silent() bool { return s.ready && s.list == nil }

// ownEntries is what the endpoint itself offers, tools in dotted spelling.
type ownEntries struct {
	tools, resources, templates []json.RawMessage
	noChaos                     bool // what belongs to chaos is in no list
	instructions                string
}

// listKind tells the four lists apart.
type listKind int

const (
	tools listKind = iota
	prompts
	resources
	templates
	kinds // how many there are
)

// kindTable holds how each list is spelled: in words and in remembered files, in
// its result, and which member of an entry is its name.
var kindTable = [kinds]kindRow{
	tools:     {"tool", "tools", "name"},
	prompts:   {"prompt", "prompts", "name"},
	resources: {"resource", "resources", "uri"},
	templates: {"template", "resourceTemplates", "uriTemplate"},
}

type kindRow struct{ noun, member, key string }

func (k listKind) String() string { return kindTable[k].noun }

// view is how a client wants its lists.
type view struct {
	dotted bool // own tools are spelled with a dot
	modern bool // 2026-07-28: resultType and cache hints, no invalid x-mcp-header
}

// nameError says that a name or URI leads nowhere, or to more than one upstream.
type nameError struct {
	msg       string
	ambiguous bool
}

func (e *nameError) Error() string { return e.msg }

// tool returns the entry a call means: by its exposed name, an own tool in
// either spelling, else as upstream.tool or by the upstream's own name where
// one tool alone has it. The error is a *nameError.
func (c *catalog) tool(name string) (*entry, error) { return c.toolNames.find(tools, name) }

// prompt is tool for prompts.
func (c *catalog) prompt(name string) (*entry, error) { return c.promptNames.find(prompts, name) }

// resource returns the upstream that a URI, or a URI template, means and its
// spelling there; upstream is "" for our own. The error is a *nameError.
func (c *catalog) resource(uri string) (upstream, original string, err error) {
	if strings.HasPrefix(uri, ownScheme) {
		return "", uri, nil
	}
	if rest, ok := strings.CutPrefix(uri, upScheme); ok {
		if upstream, original, ok = c.uris.fromUp(rest); ok {
			return upstream, original, nil
		}
		return "", "", unknown(resources, uri)
	}
	switch found := c.uris.find(uri); len(found) {
	case 0:
		return "", "", unknown(resources, uri)
	case 1:
		return found[0], uri, nil
	default:
		candidates := make([]string, len(found))
		for i, u := range found {
			candidates[i] = upURI(u, uri)
		}
		return "", "", ambiguous(resources, uri, candidates)
	}
}

// exposedURI returns how clients know an upstream's URI, listed or not: as it
// is, unless that means another upstream, or several, or ourselves.
func (c *catalog) exposedURI(upstream, uri string) string {
	if found := c.uris.find(uri); len(found) > 1 || len(found) == 1 && found[0] != upstream || reserved(uri) {
		return upURI(upstream, uri)
	}
	return uri
}

// instructions returns ours and the upstreams', at most maxInstructions bytes.
func (c *catalog) instructions() string { return c.intro }

// list returns the whole result of one list method. The bytes are shared: the
// caller must not write to them.
func (c *catalog) list(kind listKind, v view) []byte {
	i := 0
	if v.dotted {
		i |= 1
	}
	if v.modern {
		i |= 2
	}
	slot := &c.views[kind][i]
	slot.once.Do(func() { slot.raw = c.render(kind, v) })
	return slot.raw
}

// render joins the raw entries. The members of modern results have the order
// of the specification's examples.
func (c *catalog) render(kind listKind, v view) []byte {
	size := 128
	for _, e := range c.entries[kind] {
		size += len(e.listed) + 1
	}
	out := append(make([]byte, 0, size), '{')
	if v.modern {
		out = append(out, `"resultType":"complete",`...)
	}
	out = append(append(append(out, '"'), kindTable[kind].member...), `":[`...)
	first := true
	for _, e := range c.entries[kind] {
		if e.hidden || v.modern && e.legacyOnly != "" {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		if v.dotted {
			out = append(out, e.listed...)
		} else {
			out = append(out, e.safe...)
		}
	}
	out = append(out, ']')
	if v.modern {
		scope := "private"
		if c.public {
			scope = "public"
		}
		out = strconv.AppendInt(append(out, `,"ttlMs":`...), c.ttl, 10)
		out = append(append(append(out, `,"cacheScope":"`...), scope...), '"')
	}
	return append(out, '}')
}
