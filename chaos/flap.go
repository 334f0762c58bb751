package chaos

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// flap is a server that is not there for a while (down, 5 s), then well (up,
// 10 s), and so on, beginning with down. A process of ours dies at its first
// request in such a time and cannot be started before its end.
var flap = kind{
	about:      "the server goes down and up again, by turns",
	parameters: []string{"up", "down"},
	ops:        []Op{Request, ToolCall, ToolList, Connect},
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		up, down := time.Duration(cmp.Or(s.Up, Duration(10*time.Second))), time.Duration(cmp.Or(s.Down, Duration(5*time.Second)))
		began := time.Now()
		return func(*rand.Rand, Call) Decision {
			if time.Since(began)%(up+down) < down {
				return Decision{Action: Refuse}
			}
			return Decision{}
		}
	},
}
