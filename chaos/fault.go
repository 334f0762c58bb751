package chaos

import (
	"math/rand/v2"
	"slices"
)

// Kind names what a fault does.
type Kind string

// The kinds of faults; each has a file of its own.
const (
	Kill        Kind = "kill"
	Error       Kind = "error"
	Latency     Kind = "latency"
	Hang        Kind = "hang"
	Drop        Kind = "drop"
	Corrupt     Kind = "corrupt"
	Truncate    Kind = "truncate"
	RateLimit   Kind = "rate_limit"
	Flap        Kind = "flap"
	ToolError   Kind = "tool_error"
	SchemaDrift Kind = "schema_drift"
)

// Kinds are all kinds of faults.
var Kinds = []Kind{Kill, Error, Latency, Hang, Drop, Corrupt, Truncate, RateLimit, Flap, ToolError, SchemaDrift}

// kind is how one kind of fault works.
type kind struct {
	about      string   // what it does, for people
	parameters []string // of Spec, beside those that every fault has
	ops        []Op     // of servers that it can hit; nil: every request
	check      func(Spec) error
	// start returns what decides about the calls that are to be hit; the zero
	// Decision lets one pass and is no hit. It is called under the fault's lock.
	start func(s Spec) func(r *rand.Rand, c Call) Decision
}

var kinds = map[Kind]kind{
	Kill: kill, Error: failure, Latency: latency, Hang: hang, Drop: drop, Corrupt: corrupt,
	Truncate: truncate, RateLimit: rateLimit, Flap: flap, ToolError: toolError, SchemaDrift: schemaDrift,
}

// hits tells whether the kind can do something to a call.
func (k kind) hits(c Call) bool {
	switch {
	case c.Op == Connect:
		return slices.Contains(k.ops, Connect)
	case k.ops == nil || c.provider():
		return true
	}
	return slices.Contains(k.ops, c.Op)
}

// always makes a start of one decision that is always the same.
func always(d Decision) func(Spec) func(*rand.Rand, Call) Decision {
	return func(Spec) func(*rand.Rand, Call) Decision {
		return func(*rand.Rand, Call) Decision { return d }
	}
}

func kindNames() []string {
	names := make([]string, len(Kinds))
	for i, k := range Kinds {
		names[i] = string(k)
	}
	return names
}

// About says in a sentence what a kind does.
func (k Kind) About() string { return kinds[k].about }
