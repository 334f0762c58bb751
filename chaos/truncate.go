package chaos

import "math/rand/v2"

// truncate ends the answer too early, as if that were its end.
var truncate = kind{
	about: "the answer ends in its midst",
	start: func(Spec) func(*rand.Rand, Call) Decision {
		return func(r *rand.Rand, _ Call) Decision {
			return Decision{Action: Garble, Change: func(b []byte) []byte { return cut(r, b) }}
		}
	},
}

// cut returns between a half and nine tenths of b: enough to tell whose answer it was.
func cut(r *rand.Rand, b []byte) []byte {
	return b[:int(float64(len(b))*(0.5+0.4*r.Float64()))]
}
