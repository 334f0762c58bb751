package llm

import (
	"cmp"
	"math"
	"slices"
)

// Strategy is the order in which a chain tries its entries.
type Strategy string

// The strategies. Entries that are equal under one keep the order of the chain.
const (
	ByPriority Strategy = "priority" // as they are written
	ByHealth   Strategy = "health"   // fewest errors of the last five minutes, then the lowest p95
	ByLatency  Strategy = "latency"  // lowest p50 of the last five minutes; unknown ones first, those that mostly fail last
	ByCost     Strategy = "cost"     // cheapest for this request; no price is free
)

func (s Strategy) known() bool {
	return slices.Contains([]Strategy{ByPriority, ByHealth, ByLatency, ByCost}, s)
}

// Price is what a model costs, in one currency per million tokens.
type Price struct {
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
}

// likelyOutput is how long an answer is taken to be when nobody limits it.
const likelyOutput = 500

func (p Price) of(n need) float64 {
	return p.Input*float64(n.input) + p.Output*float64(cmp.Or(n.output, likelyOutput))
}

// order returns the entries in the order in which a request tries them: those
// it prefers, as it names them, then the others as the strategy says.
func (c *Chain) order(r *Request, n need) []*entry {
	strategy := cmp.Or(r.Strategy, c.o.Strategy)
	if len(c.entries) < 2 || strategy == ByPriority && len(r.Prefer) == 0 {
		return c.entries
	}
	keys := make(map[*entry][3]float64, len(c.entries))
	for _, e := range c.entries {
		rank := float64(slices.IndexFunc(r.Prefer, e.is))
		if rank < 0 {
			rank = math.Inf(1)
		}
		first, second := strategy.key(e, n)
		keys[e] = [3]float64{rank, first, second}
	}
	order := slices.Clone(c.entries)
	slices.SortStableFunc(order, func(a, b *entry) int {
		x, y := keys[a], keys[b]
		return slices.Compare(x[:], y[:])
	})
	return order
}

// key returns what a strategy sorts an entry by. Error rates count in steps of
// 5 %, so that latency decides between those that do about equally well. Few are
// as fast as those that refuse everything.
func (s Strategy) key(e *entry, n need) (first, second float64) {
	switch s {
	case ByCost:
		return e.Price.of(n), 0
	case ByLatency:
		w := e.window.Snapshot()
		return math.Round(w.ErrorRate), w.P50MS
	case ByHealth:
		w := e.window.Snapshot()
		if w.Calls == 0 {
			return 0, math.Inf(1)
		}
		return math.Round(w.ErrorRate * 20), w.P95MS
	}
	return 0, 0
}

// is tells whether a request that prefers name means the entry.
func (e *entry) is(name string) bool {
	return name == e.Name || name == e.info.Model || name == e.info.API || name == e.info.API+"/"+e.info.Model
}
