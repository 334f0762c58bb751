package builtin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
)

// statusArguments are those of armor.status; what is empty or null was not given.
type statusArguments struct {
	Section  string   `json:"section"`
	Upstream string   `json:"upstream"`
	Kind     string   `json:"kind"`
	Tool     string   `json:"tool"`
	Limit    *float64 `json:"limit"` // a whole number, which JSON may spell 20.0
	SinceSeq *float64 `json:"since_seq"`
	Trace    string   `json:"trace"`
}

const statusArgumentNames = "section, upstream, kind, tool, limit, since_seq, trace"

// readStatusArguments reads and checks the arguments. Its errors tell an agent
// what to do.
func (src Source) readStatusArguments(r mcp.CallToolRequest) (*statusArguments, error) {
	a := &statusArguments{}
	if raw := r.Params.RawArguments; len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(a); err != nil {
			return nil, inStatusWords(err)
		}
	}
	if a.Section == "" {
		a.Section = sections[0]
	}
	if !slices.Contains(sections, a.Section) {
		return nil, fmt.Errorf("no section %q: use one of %s", short(a.Section), strings.Join(sections, ", "))
	}
	if err := a.fit(); err != nil {
		return nil, err
	}
	return a, src.checkNames(a)
}

func inStatusWords(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		switch {
		case wrong.Field == "":
			return errors.New("the arguments must be an object; leave them out for the summary")
		case wrong.Type.Kind() == reflect.String:
			return fmt.Errorf("%s must be a string", wrong.Field)
		}
		return fmt.Errorf("%s must be a whole number", wrong.Field)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("there is no argument %s: use %s", short(name), statusArgumentNames)
	}
	return errors.New("the arguments cannot be read as a JSON object")
}

// fit checks that each argument has a meaning in the section, and numbers.
func (a *statusArguments) fit() error {
	for _, arg := range []struct {
		name     string
		given    bool
		sections []string
	}{
		{"upstream", a.Upstream != "", []string{"summary", "upstreams", "events"}},
		{"kind", a.Kind != "", []string{"events"}},
		{"tool", a.Tool != "", []string{"events"}},
		{"limit", a.Limit != nil, []string{"events", "traces"}},
		{"since_seq", a.SinceSeq != nil, []string{"events"}},
		{"trace", a.Trace != "", []string{"traces"}},
	} {
		if arg.given && !slices.Contains(arg.sections, a.Section) {
			return fmt.Errorf("%s has no meaning in section %s: leave it out, or ask for section %s", arg.name, a.Section, strings.Join(arg.sections, " or "))
		}
	}
	if n := a.SinceSeq; n != nil && (*n < 0 || *n != math.Trunc(*n) || *n > 1<<53) {
		return errors.New("since_seq must be a whole number, 0 or more: last_seq of an earlier answer")
	}
	if n := a.Limit; n != nil && (*n < 1 || *n > maxEvents || *n != math.Trunc(*n)) {
		return fmt.Errorf("limit must be a whole number from 1 to %d", maxEvents)
	}
	return nil
}

func (src Source) checkNames(a *statusArguments) error {
	if a.Kind != "" && !slices.Contains(src.EventKinds, a.Kind) {
		return fmt.Errorf("no kind %q: use one of %s", short(a.Kind), strings.Join(src.EventKinds, ", "))
	}
	if a.Upstream == "" {
		return nil
	}
	if _, ok := src.Upstream(a.Upstream); !ok {
		return fmt.Errorf("no upstream %q; armor.status without arguments lists them", short(a.Upstream))
	}
	return nil
}

// limit is how many events or traces are wanted.
func (a *statusArguments) limit() int {
	if a.Limit == nil {
		return toolEvents
	}
	return int(*a.Limit)
}

func (a *statusArguments) since() uint64 {
	if a.SinceSeq == nil {
		return 0
	}
	return uint64(*a.SinceSeq)
}
