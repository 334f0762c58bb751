package wire

import "slices"

// Meta is what a request's params._meta says about its sender: the members
// that 2026-07-28 defines for every request, and the progress token. Raw
// members are JSON as it came, nil when absent.
type Meta struct {
	Version       string // io.modelcontextprotocol/protocolVersion, "" when absent or no string
	Caps          []byte // …/clientCapabilities
	ClientInfo    []byte // …/clientInfo
	LogLevel      []byte // …/logLevel
	ProgressToken []byte
	Modern        bool // Version is set and names no revision with a handshake
}

// ReadMeta reads the _meta member of a request's params, which may be nil.
func ReadMeta(params []byte) Meta {
	var m Meta
	raw := Get(params, "_meta")
	if raw == nil {
		return m
	}
	for key, val := range Members(raw) {
		switch key {
		case MetaPrefix + "protocolVersion":
			m.Version, _ = String(val)
		case MetaPrefix + "clientCapabilities":
			m.Caps = val
		case MetaPrefix + "clientInfo":
			m.ClientInfo = val
		case MetaPrefix + "logLevel":
			m.LogLevel = val
		case "progressToken":
			m.ProgressToken = val
		}
	}
	m.Modern = m.Version != "" && !isLegacy(m.Version)
	return m
}

// isLegacy tells the revisions that start with an initialize handshake.
func isLegacy(version string) bool {
	return version != Modern && slices.Contains(Versions, version)
}
