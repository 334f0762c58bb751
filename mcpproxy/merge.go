package mcpproxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// maxQuoted bounds what a name or URI adds to an error, in bytes.
const maxQuoted = 200

// maxInstructions bounds what the endpoint says about itself and its upstreams, in bytes.
const maxInstructions = 2 << 10

// buildCatalog merges what the endpoint and its upstreams offer. It is pure:
// the result depends on the arguments only, and not on the order of any
// upstream's list.
func buildCatalog(own ownEntries, sources []source) *catalog {
	c := &catalog{
		toolNames:   newNames(),
		promptNames: newNames(),
		uris:        newURIIndex(),
		intro:       joinInstructions(own.instructions, sources),
		quarantined: map[string]map[string]string{},
	}
	c.ttl, c.public = cacheHints(sources)
	c.addOwn(own)
	var listed [kinds][]*entry
	for i := range sources {
		c.addNamed(&sources[i], &listed)
		c.readURIs(&sources[i], &listed)
	}
	c.uris.only = onlyResources(sources)
	for kind, entries := range listed {
		for _, e := range entries {
			c.expose(e)
		}
		slices.SortStableFunc(entries, func(a, b *entry) int {
			return cmp.Or(cmp.Compare(a.upstream, b.upstream), cmp.Compare(a.exposed, b.exposed))
		})
		c.entries[kind] = append(c.entries[kind], entries...)
	}
	return c
}

// addOwn enters our own entries, which come first and give way to nothing.
func (c *catalog) addOwn(own ownEntries) {
	for kind, raws := range [kinds][]json.RawMessage{tools: own.tools, resources: own.resources, templates: own.templates} {
		for _, raw := range raws {
			e, err := newEntry(listKind(kind), "", raw)
			if err != nil {
				continue
			}
			e.exposed, e.listed, e.safe = e.original, e.raw, e.raw
			e.hidden = own.noChaos && (e.original == builtin.ChaosURI || slices.Contains(builtin.ChaosTools, e.original))
			if e.kind == tools {
				c.toolNames.takeOwn(e)
				e.safe = e.renamed(safeSpelling(e.original))
			}
			c.entries[kind] = append(c.entries[kind], e)
		}
	}
}

// addNamed enters the tools and prompts of one upstream.
func (c *catalog) addNamed(s *source, listed *[kinds][]*entry) {
	if s.list == nil {
		return
	}
	found := slices.DeleteFunc(c.read(tools, s, s.list.Tools), func(e *entry) bool { return !s.allowed(e.original) })
	for _, e := range found {
		reason, suspect := s.suspects[e.original]
		if suspect {
			c.quarantine(s.name, e.original, reason)
		}
		e.hidden = s.hidden || suspect
		var err error
		if e.params, err = readParamHeaders(e.raw); err != nil {
			e.legacyOnly = err.Error()
			if suspect {
				continue
			}
			c.quarantine(s.name, e.original, "not listed to 2026-07-28 clients: "+e.legacyOnly)
		}
	}
	c.toolNames.take(s.prefix, found)
	listed[tools] = append(listed[tools], found...)

	found = c.read(prompts, s, s.list.Prompts)
	c.promptNames.take(s.prefix, found)
	listed[prompts] = append(listed[prompts], found...)
}

// readURIs enters the resources and templates of one upstream; they are
// exposed once those of all upstreams are known.
func (c *catalog) readURIs(s *source, listed *[kinds][]*entry) {
	c.uris.upstreams = append(c.uris.upstreams, s.name)
	if s.list == nil {
		return
	}
	for _, e := range c.read(resources, s, s.list.Resources) {
		c.uris.listed[e.original] = appendNew(c.uris.listed[e.original], s.name)
		listed[resources] = append(listed[resources], e)
	}
	for _, e := range c.read(templates, s, s.list.Templates) {
		c.uris.written[e.original] = appendNew(c.uris.written[e.original], s.name)
		listed[templates] = append(listed[templates], e)
		t, err := parseTemplate(e.original)
		if err != nil {
			c.quarantine(s.name, "template "+cut(e.original, maxQuoted), err.Error()+"; listed, but no URI is matched with it")
			continue
		}
		c.uris.templates = append(c.uris.templates, upTemplate{s.name, t})
	}
}

// read turns raw entries into ours and quarantines those that nothing can
// refer to. Tools and prompts must not stand twice: clients drop the whole list.
func (c *catalog) read(kind listKind, s *source, raws []json.RawMessage) []*entry {
	found := make([]*entry, 0, len(raws))
	seen := map[string]bool{}
	for i, raw := range raws {
		e, err := newEntry(kind, s.name, raw)
		if err == nil && seen[e.original] && (kind == tools || kind == prompts) {
			c.quarantine(s.name, fmt.Sprintf("%s (%s %d)", cut(e.original, maxQuoted), kind, i+1), "listed twice, the first one counts")
			continue
		}
		if err != nil {
			c.quarantine(s.name, fmt.Sprintf("%s %d", kind, i+1), err.Error())
			continue
		}
		seen[e.original] = true
		found = append(found, e)
	}
	return found
}

// newEntry reads the one member of raw that matters: its name or URI. Of
// several the last counts, as for the parsers of clients.
func newEntry(kind listKind, upstream string, raw json.RawMessage) (*entry, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errors.New("not a JSON object")
	}
	key := kindTable[kind].key
	var as []byte
	for k, v := range wire.Members(raw) {
		if k == key {
			as = v
		}
	}
	if as == nil {
		return nil, errors.New(key + " is missing")
	}
	name, ok := wire.String(as)
	if !ok {
		return nil, errors.New(key + " is not a string")
	}
	return &entry{kind: kind, original: name, upstream: upstream, raw: raw, rawName: as}, nil
}

// expose fixes how an upstream's entry is listed.
func (c *catalog) expose(e *entry) {
	switch e.kind {
	case resources:
		e.exposed = c.uris.exposeURI(e.upstream, e.original)
	case templates:
		e.exposed = c.uris.exposeTemplate(e.upstream, e.original)
	}
	e.listed = e.renamed(e.exposed)
	e.safe = e.listed
}

// renamed returns the raw entry under another name; every other byte stays.
func (e *entry) renamed(name string) json.RawMessage {
	if name == e.original {
		return e.raw
	}
	edit := wire.Edit{Key: kindTable[e.kind].key, Value: wire.AppendString(nil, name)}
	return wire.Rewrite(make([]byte, 0, len(e.raw)+len(name)), e.raw, edit)
}

func (c *catalog) quarantine(upstream, what, reason string) {
	if c.quarantined[upstream] == nil {
		c.quarantined[upstream] = map[string]string{}
	}
	c.quarantined[upstream][what] = reason
}

// cacheHints returns the smallest ttlMs, 0 while some upstream is not ready,
// and whether all lists are public. An upstream that says nothing, as older
// ones do, has not said that its list is the same for every user. Our own
// entries are public and do not age.
func cacheHints(sources []source) (ttl int64, public bool) {
	public = true
	first := true
	for _, s := range sources {
		if s.silent() {
			continue
		}
		var t int64
		if s.list != nil && s.ready {
			t = max(0, s.list.TTL)
		}
		if first || t < ttl {
			ttl = t
		}
		first = false
		public = public && s.list != nil && s.list.Public
	}
	return ttl, public
}

// onlyResources returns the one upstream that has resources at all, "" if
// there are several or one is not known yet. It gets the URIs that nobody
// lists: some servers list none of theirs, and its own error is the best answer.
func onlyResources(sources []source) string {
	only := ""
	for _, s := range sources {
		if s.silent() {
			continue
		}
		if s.list == nil || s.list.hasResources() && only != "" {
			return ""
		}
		if s.list.hasResources() {
			only = s.name
		}
	}
	return only
}

// joinInstructions puts the upstreams' instructions behind ours, each cut to
// a fair share of what is left of maxInstructions.
func joinInstructions(own string, sources []source) string {
	speaking := slices.DeleteFunc(slices.Clone(sources), func(s source) bool { return s.list == nil || s.list.Instructions == "" })
	var b strings.Builder
	b.WriteString(cut(own, maxInstructions))
	for i, s := range speaking {
		head := s.name + ":"
		if s.prefix != "" {
			head = fmt.Sprintf("%s (its names start with %s):", s.name, clean(s.prefix)+nameSeparator)
		}
		if b.Len() > 0 {
			head = "\n\n" + head
		}
		share := (maxInstructions - b.Len()) / (len(speaking) - i)
		const worthwhile = 40 // bytes of text behind the head
		if share < len(head)+worthwhile {
			continue
		}
		b.WriteString(head + "\n")
		b.WriteString(cut(s.list.Instructions, share-len(head)-1))
	}
	return b.String()
}

// cut returns at most n bytes of s, whole characters, with an ellipsis where
// something is missing.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const ellipsis = "…"
	n = max(0, n-len(ellipsis))
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + ellipsis
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
