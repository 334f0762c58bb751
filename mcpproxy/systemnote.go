package mcpproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxNote is the most bytes of a note.
const maxNote = 600

// SystemNote tells a model which servers and tools do not work now and since
// when; "" while all do. It is for llm.Options.SystemNote. It holds names and
// times alone: nothing that a server says gets into a system prompt by it.
func (p *Proxy) SystemNote() string {
	down := p.down()
	if len(down) == 0 {
		return ""
	}
	const intro, end = "Tools that do not work now: ", ". Do not promise what needs them; say that they are unavailable."
	var b strings.Builder
	b.WriteString(intro)
	for i, one := range down {
		more := fmt.Sprintf("; and %d more", len(down)-i)
		if b.Len()+len(one)+len(more)+len(end) > maxNote {
			b.WriteString(strings.TrimPrefix(more, "; "))
			break
		}
		b.WriteString(one)
		if i < len(down)-1 {
			b.WriteString("; ")
		}
	}
	b.WriteString(end)
	return b.String()
}

// down says of each server and tool that does not work what it is and since
// when, servers first, in the order of the config.
func (p *Proxy) down() []string {
	var servers, single []string
	missing := p.missing()
	for _, up := range p.enabled() {
		name := up.cfg.Name
		if m, ok := missing[name]; ok && !usable(m.State) {
			if since := up.out(); !since.IsZero() { // else it starts: a call waits for it
				servers = append(servers, fmt.Sprintf("all of server %s (down since %s)", clean(cut(name, maxName)), inUTC(since)))
			}
			continue
		}
		var broken []string
		for _, t := range up.guard.watched() {
			if !t.breaker.Closed() {
				broken = append(broken, fmt.Sprintf("%s (since %s)", p.exposed(up, t.name), inUTC(t.since())))
			}
		}
		slices.Sort(broken)
		single = append(single, broken...)
	}
	return append(servers, single...)
}

func inUTC(t time.Time) string { return t.UTC().Format(time.RFC3339) }
