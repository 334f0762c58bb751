package mcpproxy

import (
	"cmp"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

const (
	// maskSize is the shortest value that is kept out of texts: shorter ones are
	// no secrets, and would turn up in ordinary words.
	maskSize = 8
	// maskTail is how much of a value the end of a line must show to be masked.
	maskTail = 4
)

// secret is a value that the config gives to an upstream, and what stands in
// its place where the upstream repeats it.
type secret struct{ value, shown string }

// secrets are the values of one upstream, longest first.
type secrets struct {
	all  []secret
	mask func(text string) string // puts their names in place of the values
}

// secretsOf collects what an upstream's env, headers and URL hold, whole and
// in words: of "Bearer <token>" the token too.
func secretsOf(u *UpstreamConfig) secrets {
	var all []secret
	add := func(value, shown string) {
		for _, v := range append(strings.Fields(value), strings.TrimSpace(value)) {
			if len(v) >= maskSize {
				all = append(all, secret{v, "[" + shown + "]"})
			}
		}
	}
	for name, value := range u.Env {
		add(value, "env "+name)
	}
	for name, value := range u.Headers {
		add(value, "header "+name)
	}
	if at, err := url.Parse(u.URL); err == nil {
		if password, ok := at.User.Password(); ok {
			add(password, "url password")
			add(base64.StdEncoding.EncodeToString([]byte(at.User.Username()+":"+password)), "url password")
		}
		for name, values := range at.Query() {
			for _, value := range values {
				add(value, "url "+name)
			}
		}
	}
	slices.SortFunc(all, func(a, b secret) int {
		return cmp.Or(len(b.value)-len(a.value), cmp.Compare(a.shown, b.shown))
	})
	var pairs []string
	for _, x := range all {
		pairs = append(pairs, x.value, x.shown)
	}
	return secrets{all, strings.NewReplacer(pairs...).Replace}
}

// lines masks each of lines, in place, also a value whose end is missing
// because the line was cut or is not complete yet.
func (s secrets) lines(lines []string) []string {
	for i, line := range lines {
		lines[i] = s.tail(s.mask(line))
	}
	return lines
}

func (s secrets) tail(line string) string {
	for _, x := range s.all {
		for n := min(len(x.value)-1, len(line)); n >= maskTail; n-- {
			if strings.HasSuffix(line, x.value[:n]) {
				return line[:len(line)-n] + x.shown
			}
		}
	}
	return line
}
