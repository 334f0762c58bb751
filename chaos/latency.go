package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Distribution is how the delays of a latency fault differ.
type Distribution string

// The distributions of delays.
const (
	Fixed   Distribution = "fixed"   // always delay
	Uniform Distribution = "uniform" // delay ± jitter, all the same likely
	Normal  Distribution = "normal"  // mean delay, standard deviation jitter
	Pareto  Distribution = "pareto"  // at least delay, with a tail: P(more than x) = (delay/x)^shape; shape is 2 unless given
)

// Distributions are all of them.
var Distributions = []Distribution{Fixed, Uniform, Normal, Pareto}

// latency makes a request wait before it is sent. Without a distribution it is
// uniform if there is a jitter, else fixed.
var latency = kind{
	about:      "requests wait before they are sent",
	parameters: []string{"delay", "jitter", "distribution", "shape"},
	check:      checkLatency,
	start: func(s Spec) func(*rand.Rand, Call) Decision {
		return func(r *rand.Rand, _ Call) Decision {
			return Decision{delays: []delay{{wait: s.draw(r)}}}
		}
	},
}

func checkLatency(s Spec) error {
	switch d := s.distribution(); {
	case s.Delay == 0:
		return errors.New("latency needs a delay")
	case !slices.Contains(Distributions, d):
		return fmt.Errorf("unknown distribution %q: use fixed, uniform, normal or pareto", d)
	case (d == Fixed || d == Pareto) && s.Jitter != 0:
		return fmt.Errorf("distribution %s has no jitter: use uniform or normal", d)
	case (d == Uniform || d == Normal) && s.Jitter == 0:
		return fmt.Errorf("distribution %s needs a jitter", d)
	case d != Pareto && s.Shape != 0:
		return fmt.Errorf("distribution %s has no shape: use pareto", d)
	}
	return nil
}

func (s Spec) distribution() Distribution {
	if s.Jitter != 0 {
		return cmp.Or(s.Distribution, Uniform)
	}
	return cmp.Or(s.Distribution, Fixed)
}

// draw returns one delay, at most an hour.
func (s Spec) draw(r *rand.Rand) time.Duration {
	delay, jitter := float64(s.Delay), float64(s.Jitter)
	switch s.distribution() {
	case Uniform:
		delay += jitter * (2*r.Float64() - 1)
	case Normal:
		delay += jitter * r.NormFloat64()
	case Pareto:
		delay /= math.Pow(1-r.Float64(), 1/cmp.Or(s.Shape, 2))
	}
	return time.Duration(min(max(delay, 0), float64(time.Hour)))
}
