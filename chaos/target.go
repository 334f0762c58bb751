package chaos

import (
	"fmt"
	"path"
	"strings"
)

// Provider is the target of an entry of the chain of models.
func Provider(entry string) string { return "llm/" + plain(entry) }

// Server is the target of an upstream.
func Server(upstream string) string { return "mcp/" + plain(upstream) }

// Tool is the target of a tool, by the name it has at its upstream.
func Tool(upstream, tool string) string { return Server(upstream) + "/" + tool }

// plain keeps a name with slashes one segment.
func plain(name string) string { return strings.ReplaceAll(name, "/", "%2F") }

// segments splits a target or pattern. A tool's name may hold slashes, which
// stand for no separator here.
func segments(s string) []string {
	parts := strings.SplitN(s, "/", 3)
	if len(parts) == 3 {
		parts[2] = strings.ReplaceAll(parts[2], "/", "\x00")
	}
	return parts
}

// matches tells whether a pattern names a target of the same number of segments.
func matches(pattern, target string) bool {
	p, t := segments(pattern), segments(target)
	if len(p) != len(t) {
		return false
	}
	for i := range p {
		if ok, err := path.Match(p[i], t[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// serverOf is the server, or provider, that a target belongs to.
func serverOf(target string) string {
	parts := segments(target)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

func checkPattern(pattern string) error {
	const forms = "llm/<entry>, mcp/<server> or mcp/<server>/<tool>, with * and ? in each part"
	parts := segments(pattern)
	if pattern == "" {
		return fmt.Errorf("target is missing: use %s", forms)
	}
	wrong := len(parts) < 2 || parts[0] != "llm" && parts[0] != "mcp" && parts[0] != "*" || len(parts) == 3 && parts[0] == "llm"
	for _, part := range parts {
		_, err := path.Match(part, "")
		wrong = wrong || part == "" || err != nil
	}
	if wrong {
		return fmt.Errorf("target %q is none: use %s", pattern, forms)
	}
	return nil
}
