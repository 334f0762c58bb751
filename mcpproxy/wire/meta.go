package wire

import "slices"

// requestMeta is what a request's params._meta says about its generation.
type requestMeta struct {
	version string // io.modelcontextprotocol/protocolVersion, "" when absent or no string
	caps    []byte // …/clientCapabilities as it came, nil when absent
	modern  bool   // version is set and names no revision with a handshake
}

// readMeta reads the _meta member of a request's params, which may be nil.
func readMeta(params []byte) requestMeta {
	var m requestMeta
	raw := Get(params, "_meta")
	if raw == nil {
		return m
	}
	for key, val := range Members(raw) {
		switch key {
		case MetaPrefix + "protocolVersion":
			m.version, _ = String(val)
		case MetaPrefix + "clientCapabilities":
			m.caps = val
		}
	}
	m.modern = m.version != "" && !isLegacy(m.version)
	return m
}

// isLegacy tells the revisions that start with an initialize handshake.
func isLegacy(version string) bool {
	return version != Modern && slices.Contains(Versions, version)
}
