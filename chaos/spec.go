package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Spec describes a fault. Target, Fault and TTL are required; which of the last
// group a fault takes is told in its file, and any other is an error.
type Spec struct {
	Target      string   `json:"target"`
	Fault       Kind     `json:"fault"`
	Probability *float64 `json:"probability,omitempty"` // of each call to be hit; nil: 1
	Count       int      `json:"count,omitempty"`       // hits at most; 0: no limit
	After       int      `json:"after,omitempty"`       // calls that pass before the first hit
	TTL         Duration `json:"ttl"`                   // when it ends by itself
	Seed        int64    `json:"seed,omitempty"`        // of its random source; 0: from the injector's

	Status       int          `json:"status,omitempty"`
	RetryAfter   Duration     `json:"retry_after,omitempty"`
	Delay        Duration     `json:"delay,omitempty"`
	Jitter       Duration     `json:"jitter,omitempty"`
	Distribution Distribution `json:"distribution,omitempty"`
	Shape        float64      `json:"shape,omitempty"`
	Limit        int          `json:"limit,omitempty"`
	Per          Duration     `json:"per,omitempty"`
	Up           Duration     `json:"up,omitempty"`
	Down         Duration     `json:"down,omitempty"`
	Message      string       `json:"message,omitempty"`
}

// Duration is a time.Duration that is written like "1m30s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration such as 30s or 5m", text)
	}
	*d = Duration(v)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// MaxMessage is the most characters of [Spec].Message.
const MaxMessage = 1000

// Validate tells what is wrong with a fault whose time to live may be maxTTL
// at most. It does not know which targets there are.
func (s Spec) Validate(maxTTL time.Duration) error {
	if err := checkPattern(s.Target); err != nil {
		return err
	}
	k, ok := kinds[s.Fault]
	switch {
	case !ok:
		return fmt.Errorf("unknown fault %q: use one of %s", s.Fault, strings.Join(kindNames(), ", "))
	case s.TTL == 0:
		return fmt.Errorf("ttl is missing: say when the fault ends by itself, at most after %v", maxTTL)
	case s.TTL < 0 || time.Duration(s.TTL) > maxTTL:
		return fmt.Errorf("ttl must be more than 0 and at most %v, not %v", maxTTL, s.TTL)
	case s.Probability != nil && !(*s.Probability >= 0 && *s.Probability <= 1):
		return fmt.Errorf("probability must be 0 to 1, not %v", *s.Probability)
	case s.Count < 0:
		return errors.New("count must not be below 0")
	case s.After < 0:
		return errors.New("after must not be below 0")
	}
	for _, p := range s.parameters() {
		switch {
		case !p.given:
		case !slices.Contains(k.parameters, p.name):
			return fmt.Errorf("%s is no parameter of %s: it takes %s", p.name, s.Fault, orNone(k.parameters))
		case p.negative:
			return fmt.Errorf("%s must not be below 0", p.name)
		case p.long:
			return fmt.Errorf("%s must be at most %v", p.name, longest)
		}
	}
	if k.check == nil {
		return nil
	}
	return k.check(s)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none of its own"
	}
	return strings.Join(names, ", ")
}

type parameter struct {
	name                  string
	given, negative, long bool
}

// longest bounds the durations of a fault: beyond it is a slip of the pen.
const longest = 24 * time.Hour

// parameters are those of single faults, with what was given.
func (s Spec) parameters() []parameter {
	duration := func(name string, d Duration) parameter {
		return parameter{name, d != 0, d < 0, time.Duration(d) > longest}
	}
	return []parameter{
		{"status", s.Status != 0, s.Status < 0, false},
		duration("retry_after", s.RetryAfter),
		duration("delay", s.Delay),
		duration("jitter", s.Jitter),
		{"distribution", s.Distribution != "", false, false},
		{"shape", s.Shape != 0, !(s.Shape >= 0), false}, // NaN, too
		{"limit", s.Limit != 0, s.Limit < 0, false},
		duration("per", s.Per),
		duration("up", s.Up),
		duration("down", s.Down),
		{"message", s.Message != "", false, false},
	}
}

// probability is that of each call to be hit.
func (s Spec) probability() float64 {
	if s.Probability == nil {
		return 1
	}
	return *s.Probability
}
