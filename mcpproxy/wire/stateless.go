package wire

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// ParamHeader is a parameter of a tool that clients of 2026-07-28 mirror in a
// header (x-mcp-header): Mcp-Param-<Name> holds the argument at Path.
type ParamHeader struct {
	Name string
	Path []string // property names from the arguments down
}

// postModern takes a message of 2026-07-28 or later: every request stands for
// itself, in a session that lives as long as its response.
func (h *HTTP) postModern(w http.ResponseWriter, r *http.Request, m Message, meta requestMeta, principal string) {
	if m.IsResponse() {
		h.fail(w, r, http.StatusBadRequest, nil, CodeInvalidRequest, "Clients send no responses in this protocol version", nil)
		return
	}
	if err := h.checkModern(r.Header, m, meta); err != nil {
		h.fail(w, r, http.StatusBadRequest, m.ID, err.code, err.msg, err.data)
		return
	}
	s := &Session{Transport: "http", Principal: principal, Stateless: true}
	if m.IsNotification() {
		// A request ends with its stream; by its id alone, which other clients
		// use too, nobody may cancel it.
		if m.Method != "notifications/cancelled" {
			h.o.Handler.Handle(s, m, nil)
			h.o.Handler.Closed(s)
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	st := h.newRequestStream(nil)
	st.standing = m.Method == "subscriptions/listen"
	defer h.o.Handler.Closed(s)
	h.o.Handler.Handle(s, m, st)
	h.respond(w, r, st, true)
}

// answerStatus is the HTTP status for an answer that is alone in its response.
// Protocol errors are small, so a large answer is not looked into.
func answerStatus(raw []byte) int {
	if len(raw) > 8<<10 {
		return http.StatusOK
	}
	code, _ := strconv.Atoi(string(Get(Get(raw, "error"), "code")))
	switch code {
	case CodeMethodNotFound:
		return http.StatusNotFound
	case CodeHeaderMismatch, CodeMissingCapability, CodeUnsupportedVersion, CodeParse, CodeInvalidRequest:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// refusal is why a request fails a check, all with HTTP status 400.
type refusal struct {
	code int
	msg  string
	data []byte
}

func mismatch(format string, args ...any) *refusal {
	return &refusal{code: CodeHeaderMismatch, msg: "Header mismatch: " + fmt.Sprintf(format, args...)}
}

// checkModern checks _meta and the headers that mirror the body (2026-07-28:
// basic, _meta; streamable HTTP, Server Validation). Notifications have no
// rules of their own there.
func (h *HTTP) checkModern(hd http.Header, m Message, meta requestMeta) *refusal {
	version, present, err := single(hd, "Mcp-Protocol-Version")
	switch {
	case err != nil:
		return err
	case !present && m.IsRequest():
		return mismatch("MCP-Protocol-Version header is missing")
	case present && meta.version != "" && version != meta.version:
		return mismatch("MCP-Protocol-Version header %q does not match body value %q", version, meta.version)
	}
	if v := cmp.Or(meta.version, version); v != Modern {
		return unsupportedVersion(v)
	}
	if m.IsNotification() {
		return nil
	}
	if meta.version == "" {
		return missingMeta("protocolVersion")
	}
	if len(meta.caps) == 0 || meta.caps[0] != '{' {
		return missingMeta("clientCapabilities")
	}
	if err := checkMirrored(hd, "Mcp-Method", m.Method); err != nil {
		return err
	}
	return h.checkName(hd, m)
}

func missingMeta(key string) *refusal {
	return &refusal{code: CodeInvalidParams, msg: "_meta lacks a valid " + MetaPrefix + key}
}

func unsupportedVersion(requested string) *refusal {
	return &refusal{CodeUnsupportedVersion, "Unsupported protocol version", VersionData(requested)}
}

// VersionData is the data of a -32022 error: what we speak and what was asked for.
func VersionData(requested string) []byte {
	data := []byte(`{"supported":[`)
	for i, v := range Versions {
		if i > 0 {
			data = append(data, ',')
		}
		data = AppendString(data, v)
	}
	data = AppendString(append(data, `],"requested":`...), requested)
	return append(data, '}')
}

func (h *HTTP) unsupported(w http.ResponseWriter, r *http.Request, id []byte, version string) {
	e := unsupportedVersion(version)
	h.fail(w, r, http.StatusBadRequest, id, e.code, e.msg, e.data)
}

// single returns a header that may stand once: a reader who takes another one
// of several must not see another request than we do.
func single(hd http.Header, name string) (value string, present bool, err *refusal) {
	switch vs := hd[http.CanonicalHeaderKey(name)]; len(vs) {
	case 0:
		return "", false, nil
	case 1:
		return vs[0], true, nil
	default:
		return "", false, mismatch("%s header stands more than once", name)
	}
}

// lone returns a member that a header mirrors. Standing twice it would not say
// which of the two the header is about: readers of JSON differ in that.
func lone(obj []byte, key string) (val []byte, err *refusal) {
	for k, v := range Members(obj) {
		if k != key {
			continue
		}
		if val != nil {
			return nil, mismatch("the body holds %q twice", key)
		}
		val = v
	}
	return val, nil
}

func checkMirrored(hd http.Header, name, want string) *refusal {
	got, present, err := single(hd, name)
	switch {
	case err != nil:
		return err
	case !present:
		return mismatch("%s header is missing", name)
	case got != want:
		return mismatch("%s header %q does not match body value %q", name, got, want)
	}
	return nil
}

// checkName checks Mcp-Name and, for a tool, Mcp-Param-*. A body without the
// name is the Handler's to refuse.
func (h *HTTP) checkName(hd http.Header, m Message) *refusal {
	key := "name"
	switch m.Method {
	case "tools/call", "prompts/get":
	case "resources/read":
		key = "uri"
	default:
		return nil
	}
	value, present, err := single(hd, "Mcp-Name")
	if err != nil {
		return err
	}
	raw, err := lone(m.Params, key)
	if err != nil {
		return err
	}
	want, inBody := String(raw)
	if !present {
		if inBody {
			return mismatch("Mcp-Name header is missing")
		}
		return nil
	}
	got, derr := DecodeHeaderValue(value)
	if derr != nil {
		return mismatch("Mcp-Name header holds invalid characters or Base64")
	}
	if !inBody || got != want {
		return mismatch("Mcp-Name header %q does not match body value %q", got, want)
	}
	if m.Method == "tools/call" {
		return h.checkParams(hd, want, m.Params)
	}
	return nil
}

func (h *HTTP) checkParams(hd http.Header, tool string, params []byte) *refusal {
	if h.o.ParamHeaders == nil {
		return nil
	}
	for _, p := range h.o.ParamHeaders(tool) {
		name := "Mcp-Param-" + p.Name
		value, present, err := single(hd, name)
		if err != nil {
			return err
		}
		arg, err := argument(params, p.Path)
		if err != nil {
			return err
		}
		if err := checkParam(name, value, present, arg); err != nil {
			return err
		}
	}
	return nil
}

// argument returns the argument at path, nil if there is none.
func argument(params []byte, path []string) (arg []byte, err *refusal) {
	arg, err = lone(params, "arguments")
	for _, key := range path {
		if err == nil {
			arg, err = lone(arg, key)
		}
	}
	return arg, err
}

// checkParam compares one header with its argument, nil when that is absent.
// Values are not quoted in the error: arguments may be secret.
func checkParam(name, value string, present bool, arg []byte) *refusal {
	inBody := len(arg) > 0 && !bytes.Equal(arg, []byte("null"))
	switch {
	case !present && !inBody:
		return nil
	case !present && isPrimitive(arg):
		return mismatch("%s header is missing", name)
	case !present:
		return nil // no value that a header can hold: the tool's to refuse
	case !inBody:
		return mismatch("%s header stands for an argument that is not given", name)
	}
	got, err := DecodeHeaderValue(value)
	if err != nil {
		return mismatch("%s header holds invalid characters or Base64", name)
	}
	if !matchesPrimitive(got, arg) {
		return mismatch("%s header does not match the body", name)
	}
	return nil
}

func isPrimitive(arg []byte) bool {
	return arg[0] != '{' && arg[0] != '['
}

// matchesPrimitive compares a decoded header value with a JSON string, boolean
// or number.
func matchesPrimitive(got string, arg []byte) bool {
	switch c := arg[0]; {
	case c == '"':
		want, ok := String(arg)
		return ok && got == want
	case c == '-' || c >= '0' && c <= '9':
		return got == string(arg) || sameInteger(got, string(arg))
	default:
		return isPrimitive(arg) && got == string(arg)
	}
}

// sameInteger compares numerically, so that 42.0 is 42, within the range in
// which the protocol allows integers (±2^53−1).
func sameInteger(a, b string) bool {
	if strings.Trim(a, "0123456789+-.eE") != "" {
		return false // ParseFloat knows more spellings than JSON
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y && math.Abs(x) <= 1<<53-1
}
