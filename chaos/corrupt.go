package chaos

import (
	"bytes"
	"math/rand/v2"
)

// corrupt overwrites bytes of the answer with NUL, which stands nowhere in JSON.
var corrupt = kind{
	about: "bytes of the answer are garbage",
	start: func(Spec) func(*rand.Rand, Call) Decision {
		return func(r *rand.Rand, _ Call) Decision {
			return Decision{Action: Garble, Change: func(b []byte) []byte { return garbled(r, b) }}
		}
	},
}

// garbled overwrites every sixteenth byte or so, the first one soon after the
// begin of an object: what stands before that may be no JSON.
func garbled(r *rand.Rand, b []byte) []byte {
	out := bytes.Clone(b)
	first := bytes.IndexByte(out, '{') + 1
	for at := min(first+r.IntN(16), len(out)-1); at >= 0 && at < len(out); at += 1 + r.IntN(32) {
		out[at] = 0
	}
	return out
}
