package chaos

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"time"
)

// rateLimit answers 429 to all requests beyond limit (0: to all) in each period
// of per (one minute unless it is given). Retry-After is retry_after, else the
// rest of the period. A server over stdio has no status: it answers with a
// JSON-RPC error.
var rateLimit = kind{
	about:      "requests over a limit are answered with HTTP status 429",
	parameters: []string{"limit", "per", "retry_after"},
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		per := time.Duration(cmp.Or(s.Per, Duration(time.Minute)))
		periods := map[string]*period{}
		return func(_ *rand.Rand, c Call) Decision {
			p := periods[c.Target] // a server's tools share its limit
			if p == nil || time.Since(p.began) >= per {
				p = &period{began: time.Now()}
				periods[c.Target] = p
			}
			if p.used < s.Limit {
				p.used++
				return Decision{}
			}
			wait := time.Duration(s.RetryAfter)
			if wait == 0 {
				wait = time.Until(p.began.Add(per))
			}
			return Decision{Action: Answer, Status: http.StatusTooManyRequests, RetryAfter: wait, Text: http.StatusText(http.StatusTooManyRequests)}
		}
	},
}

// period is the current one of a target.
type period struct {
	began time.Time
	used  int
}
