package mcpproxy

import (
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/yosida95/uritemplate/v3"
)

// A URI means the upstream that lists it, else the one with a template that
// matches it. Where that is not enough, the endpoint speaks of
//
//	agentarmor-up://<upstream>/<base64url of the URI>
//	agentarmor-up://<upstream>/=<URI or URI template as it is>
//
// The second form is for templates: what a client expands from it is the
// upstream's URI behind a fixed text. "=" is no digit of base64url, so the two
// cannot be confused. Both resolve whether or not they are listed at the time.
const (
	ownScheme = "agentarmor://"
	upScheme  = "agentarmor-up://"
)

// Bounds of what is matched: a URI or template beyond them matches nothing.
const (
	maxMatched   = 8 << 10 // bytes
	maxVariables = 100
)

// uriIndex leads from URIs to upstreams.
type uriIndex struct {
	upstreams []string            // all, in config order
	listed    map[string][]string // URI → upstreams that list it
	written   map[string][]string // URI template → upstreams that list it
	templates []upTemplate
	only      string // the one upstream that can have resources, "" if others may
}

// upTemplate is a template of an upstream that URIs are matched with.
type upTemplate struct {
	upstream string
	*uritemplate.Template
}

func newURIIndex() uriIndex {
	return uriIndex{listed: map[string][]string{}, written: map[string][]string{}}
}

// parseTemplate refuses what cannot be matched safely.
func parseTemplate(s string) (*uritemplate.Template, error) {
	if len(s) > maxMatched {
		return nil, errors.New("uriTemplate is too long to match")
	}
	t, err := uritemplate.New(s)
	if err != nil {
		return nil, errors.New("uriTemplate is not a template of RFC 6570")
	}
	if len(t.Varnames()) > maxVariables {
		return nil, errors.New("uriTemplate has too many variables to match")
	}
	return t, nil
}

// exposeURI returns the URI under which upstream's uri is listed. All of
// those that several upstreams have change, so that none depends on the order.
func (x *uriIndex) exposeURI(upstream, uri string) string {
	if len(x.listed[uri]) > 1 || reserved(uri) {
		return upURI(upstream, uri)
	}
	return uri
}

// exposeTemplate is exposeURI for URI templates.
func (x *uriIndex) exposeTemplate(upstream, template string) string {
	if len(x.written[template]) > 1 || reserved(template) {
		return upScheme + url.PathEscape(upstream) + "/=" + template
	}
	return template
}

// find returns the upstreams that uri may mean.
func (x *uriIndex) find(uri string) []string {
	if found := x.listed[uri]; len(found) > 0 {
		return found
	}
	if found := x.written[uri]; len(found) > 0 { // completion names templates
		return found
	}
	if found := x.matching(uri); len(found) > 0 || x.only == "" {
		return found
	}
	return []string{x.only}
}

// matching returns the upstreams that have a template for uri.
func (x *uriIndex) matching(uri string) []string {
	if len(uri) > maxMatched {
		return nil
	}
	var found []string
	for _, t := range x.templates {
		if !slices.Contains(found, t.upstream) && t.Regexp().MatchString(uri) {
			found = append(found, t.upstream)
		}
	}
	return found
}

// fromUp undoes both forms of agentarmor-up URIs; rest is what follows the scheme.
func (x *uriIndex) fromUp(rest string) (upstream, original string, ok bool) {
	host, original, ok := strings.Cut(rest, "/")
	if !ok {
		return "", "", false
	}
	if upstream, ok = x.upstreamNamed(host); !ok {
		return "", "", false
	}
	if plain, ok := strings.CutPrefix(original, "="); ok {
		return upstream, plain, true
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(original, "="))
	return upstream, string(b), err == nil
}

// upstreamNamed also finds a name whose case a URI library has changed, as
// they do with host names.
func (x *uriIndex) upstreamNamed(host string) (string, bool) {
	name, err := url.PathUnescape(host)
	if err != nil {
		return "", false
	}
	if slices.Contains(x.upstreams, name) {
		return name, true
	}
	i := slices.IndexFunc(x.upstreams, func(u string) bool { return strings.EqualFold(u, name) })
	if i < 0 {
		return "", false
	}
	return x.upstreams[i], true
}

// upURI is the form of an upstream's URI that always resolves.
func upURI(upstream, uri string) string {
	return upScheme + url.PathEscape(upstream) + "/" + base64.RawURLEncoding.EncodeToString([]byte(uri))
}

// reserved tells whether an upstream's URI would be taken for one of ours, as
// those of an AgentArmor behind this one are.
func reserved(uri string) bool {
	return strings.HasPrefix(uri, ownScheme) || strings.HasPrefix(uri, upScheme)
}
