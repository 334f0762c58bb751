package main

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentarmor/agentarmor/mcpproxy"
)

// consistent checks what no key shows alone.
func (d *decoder) consistent(at, n *node, u *mcpproxy.UpstreamConfig) {
	local, remote := u.Command != "", u.URL != ""
	switch {
	case local && remote:
		d.fail(at, "has both a command and a url; keep one")
	case !local && !remote:
		d.fail(at, "needs a command or a url")
	case local && (u.Type == "http" || u.Type == "sse"):
		d.fail(at, "type %s needs a url, not a command", u.Type)
	case remote && u.Type == "stdio":
		d.fail(at, "type stdio needs a command, not a url")
	}
	for _, key := range []string{"args", "env", "cwd"} {
		if v := n.get(key); v != nil && remote && !local && !blankValue(v) {
			d.fail(v, "goes with command, not with url")
		}
	}
	if v := n.get("headers"); v != nil && local && !remote && !blankValue(v) {
		d.fail(v, "goes with url, not with command")
	}
	d.agree(n, u)
}

func blankValue(n *node) bool {
	return len(n.members) == 0 && len(n.items) == 0 && n.text == ""
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// consists tells whether s is not empty and made of these characters only.
func consists(s, some, more string) bool {
	return s != "" && strings.Trim(s, some+more) == ""
}

// optional makes a check accept the empty string.
func optional(c check) check {
	return func(s string) string {
		if s == "" {
			return ""
		}
		return c(s)
	}
}

func notEmpty(s string) string {
	if strings.TrimSpace(s) == "" {
		return "must not be empty"
	}
	return noNUL(s)
}

// noNUL holds for what is passed to a process.
func noNUL(s string) string {
	if strings.ContainsRune(s, 0) {
		return "must not contain a NUL character"
	}
	return ""
}

func webURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "must be an http or https URL"
	}
	return ""
}

func variableName(s string) string {
	if strings.ContainsAny(s, "=\x00") {
		return "not the name of an environment variable"
	}
	return ""
}

func headerName(s string) string {
	if !consists(s, letters, "!#$%&'*+.^_`|~-0123456789") {
		return "not the name of an HTTP header"
	}
	return ""
}

func headerValue(s string) string {
	for _, r := range s {
		if r < ' ' && r != '\t' || r == 0x7f {
			return "a header's value must not contain control characters"
		}
	}
	return ""
}

// bearer is a check for the endpoint's own bearer tokens. An empty one, from
// an empty variable perhaps, would let everyone in.
func bearer(s string) string {
	if s == "" {
		return "an empty token"
	}
	for _, r := range s {
		if r <= ' ' || r > '~' {
			return "a token has visible ASCII characters only"
		}
	}
	return ""
}

// origin is a check for what browsers send in the Origin header.
func origin(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "an origin is scheme://host or scheme://host:port, nothing more"
	}
	return ""
}

func prefix(s string) string {
	if s != "" && !consists(s, letters, "0123456789_-") || len(s) > 40 {
		return "a prefix has at most 40 letters, digits, _ and -"
	}
	return ""
}

// address is a check for host:port.
func address(s string) string {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return `must be host:port, for example "127.0.0.1:7717"`
	}
	if p, err := strconv.Atoi(port); err != nil || p < 0 || p > 65535 {
		return "the port must be a number from 0 to 65535"
	}
	return ""
}

// loopback tells whether only this machine reaches an address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil || strings.EqualFold(host, "localhost") {
		return err == nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
