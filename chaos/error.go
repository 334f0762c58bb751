package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// failure answers with an HTTP status (503 unless it is given), and a
// Retry-After header if retry_after is given. A server over stdio has no
// status: it answers with a JSON-RPC error.
var failure = kind{
	about:      "the answer is an HTTP status; over stdio a JSON-RPC error",
	parameters: []string{"status", "retry_after"},
	check: func(s Spec) error {
		if s.Status != 0 && (s.Status < 400 || s.Status > 599) {
			return fmt.Errorf("status must be 400 to 599, not %d", s.Status)
		}
		return nil
	},
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		status := cmp.Or(s.Status, http.StatusServiceUnavailable)
		d := Decision{Action: Answer, Status: status, RetryAfter: time.Duration(s.RetryAfter), Text: statusText(status)}
		return func(*rand.Rand, Call) Decision { return d }
	},
}

func statusText(status int) string {
	return cmp.Or(http.StatusText(status), fmt.Sprintf("HTTP status %d", status))
}
