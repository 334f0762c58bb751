package mcpproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"

	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// listing is what one upstream offers, as raw JSON. It is immutable once
// another goroutine can see it.
type listing struct {
	// Entries as they came, line breaks between tokens removed.
	Tools, Prompts, Resources, Templates []json.RawMessage

	TTL    int64 // ttlMs: minimum over all lists, 0 when the upstream gives none
	Public bool  // every list said cacheScope public

	Server       json.RawMessage // serverInfo, nil if unknown
	Instructions string
	Protocol     string          // negotiated revision, remembered as the era to try first
	Capabilities json.RawMessage // the server's, nil if unknown

	// Pins are the definitions that were accepted of tools which are listed
	// otherwise, or not at all; only [memory] has them.
	Pins []json.RawMessage
}

// entries is where the listing holds one kind.
func (l *listing) entries(k listKind) *[]json.RawMessage {
	return [kinds]*[]json.RawMessage{tools: &l.Tools, prompts: &l.Prompts, resources: &l.Resources, templates: &l.Templates}[k]
}

// hash identifies the entries, byte for byte and in their order; "" for nil.
func (l *listing) hash() string {
	if l == nil {
		return ""
	}
	h := sha256.New()
	var size [8]byte
	count := func(n int) {
		binary.BigEndian.PutUint64(size[:], uint64(n))
		h.Write(size[:])
	}
	for k := range kinds {
		entries := *l.entries(k)
		count(len(entries))
		for _, e := range entries {
			count(len(e))
			h.Write(e)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hasResources tells whether the upstream has resources, listed or not.
func (l *listing) hasResources() bool {
	return len(l.Resources)+len(l.Templates) > 0 || wire.Get(l.Capabilities, "resources") != nil
}
