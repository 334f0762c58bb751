package main

import (
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scalar returns the expanded value of n; numbers and booleans as spelled.
// Only a string is expanded.
func (d *decoder) scalar(n *node) (string, bool) {
	if !n.scalar() {
		d.fail(n, "must be a single value, not %v", n.kind)
		return "", false
	}
	if n.kind != kindText {
		return n.text, true
	}
	s, problems := expand(n.text, d.env)
	for _, p := range problems {
		d.fail(n, "%s", p)
	}
	return s, problems == nil
}

// text reads a string. Numbers are taken as spelled: PORT: 8080 is "8080".
func (d *decoder) text(p *string, checks ...check) setter {
	return func(n *node) {
		s, ok := d.scalar(n)
		if ok && d.passes(n, s, checks) {
			*p = s
		}
	}
}

// check returns what is wrong with a string, or "". It must not quote it.
type check func(s string) string

func (d *decoder) passes(n *node, s string, checks []check) bool {
	for _, c := range checks {
		if msg := c(s); msg != "" {
			d.fail(n, "%s", msg)
			return false
		}
	}
	return true
}

// flag reads true or false, also from a variable.
func (d *decoder) flag(p *bool) setter {
	return func(n *node) {
		s, ok := d.value(n, kindBool)
		switch {
		case !ok:
		case s == "true" || s == "false":
			*p = s == "true"
		default:
			d.fail(n, "must be true or false")
		}
	}
}

// value is scalar for kinds other than strings: a string is allowed only
// where it names a variable.
func (d *decoder) value(n *node, k kind) (string, bool) {
	if n.kind != k && (n.kind != kindText || !strings.Contains(n.text, "${")) {
		d.fail(n, "must be %v, not %v", k, n.kind)
		return "", false
	}
	return d.scalar(n)
}

// unless reads a flag whose field holds the opposite.
func (d *decoder) unless(p *bool) setter {
	return func(n *node) {
		on := !*p
		d.flag(&on)(n)
		*p = !on
	}
}

// pointer reads a value whose zero means something other than its absence.
func pointer[T any](p **T, read func(*T) setter) setter {
	return func(n *node) {
		*p = new(T)
		read(*p)(n)
	}
}

// whole reads an integer of at least least.
func (d *decoder) whole(p *int, least int) setter { return d.ranged(p, least, math.MaxInt) }

// ranged reads an integer from least to most.
func (d *decoder) ranged(p *int, least, most int) setter {
	return func(n *node) {
		s, ok := d.value(n, kindNumber)
		if !ok {
			return
		}
		i, err := strconv.Atoi(s)
		switch {
		case err != nil:
			d.fail(n, "must be a whole number")
		case i < least:
			d.fail(n, "must be at least %d", least)
		case i > most:
			d.fail(n, "must be at most %d", most)
		default:
			*p = i
		}
	}
}

// number reads a number between low and high.
func (d *decoder) number(p *float64, low, high float64) setter {
	return func(n *node) {
		s, ok := d.value(n, kindNumber)
		if !ok {
			return
		}
		f, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
			d.fail(n, "must be a number")
		case f < low || f > high:
			d.fail(n, "must be %s", between(low, high))
		default:
			*p = f
		}
	}
}

func between(low, high float64) string {
	if math.IsInf(high, 1) {
		return "at least " + strconv.FormatFloat(low, 'g', -1, 64)
	}
	return "between " + strconv.FormatFloat(low, 'g', -1, 64) + " and " + strconv.FormatFloat(high, 'g', -1, 64)
}

// duration reads a Go duration of more than zero, or of zero where that means off.
func (d *decoder) duration(p *time.Duration, zero bool) setter {
	return func(n *node) {
		s, ok := d.scalar(n)
		if !ok {
			return
		}
		v, err := time.ParseDuration(s)
		switch {
		case err != nil && isNumber(s):
			d.fail(n, `a duration needs a unit: "500ms", "30s" or "5m"`)
		case err != nil:
			d.fail(n, `not a duration; write it like "500ms", "30s" or "5m"`)
		case v < 0:
			d.fail(n, "a duration cannot be negative")
		case v == 0 && !zero:
			d.fail(n, "must be more than 0")
		default:
			*p = v
		}
	}
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// units are those of sizes, in bytes.
var units = map[string]int64{
	"": 1, "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}

// size reads a number of bytes such as 64MiB, at least least.
func (d *decoder) size(p *int, least int64) setter {
	return func(n *node) {
		s, ok := d.scalar(n)
		if !ok {
			return
		}
		digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
		unit := units[strings.TrimPrefix(s[len(digits):], " ")]
		v, err := strconv.ParseInt(digits, 10, 64)
		switch {
		case digits == "" || unit == 0:
			d.fail(n, `not a size; write it like "512KiB" or "64MiB"`)
		case err != nil || v > math.MaxInt/unit:
			d.fail(n, "too large")
		case v*unit < least:
			d.fail(n, "must be at least %d bytes", least)
		default:
			*p = int(v * unit)
		}
	}
}

// oneOf reads one of a few words.
func (d *decoder) oneOf(p *string, words ...string) setter {
	return func(n *node) {
		s, ok := d.scalar(n)
		switch {
		case !ok:
		case slices.Contains(words, s):
			*p = s
		default:
			msg := "must be one of " + strings.Join(words, ", ")
			if near := suggest(s, words); near != "" {
				msg += "; did you mean " + near + "?"
			}
			d.fail(n, "%s", msg)
		}
	}
}

// list reads strings.
func (d *decoder) list(p *[]string, checks ...check) setter {
	return func(n *node) {
		var out []string
		d.items(n, func(item *node) {
			var s string
			d.text(&s, checks...)(item)
			out = append(out, s)
		})
		*p = out
	}
}

// dict reads strings by name. A name without a value is left out.
func (d *decoder) dict(p *map[string]string, name, value check) setter {
	return func(n *node) {
		out := map[string]string{}
		d.each(n, func(key string, at, val *node) {
			if msg := name(key); msg != "" {
				d.fail(at, "%s", msg)
			}
			if val.kind == kindNull {
				return
			}
			var s string
			d.text(&s, value)(val)
			out[key] = s
		})
		*p = out
	}
}

// pattern is a check for the glob patterns of tool names.
func pattern(s string) string {
	if s == "" {
		return "an empty pattern"
	}
	if _, err := path.Match(s, ""); err != nil {
		return "not a valid pattern"
	}
	return ""
}
