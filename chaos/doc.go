// Package chaos breaks things on purpose, at the transport, so that the code
// which meets a fault is the code that would meet the real failure.
//
//	inj := chaos.New(chaos.Options{Enabled: true, Seed: 1})
//	defer inj.Close()
//	transport := inj.Transport(chaos.Provider("gemini"), http.DefaultTransport)
//	in, err := inj.Inject(chaos.Spec{Target: "llm/gemini", Fault: chaos.Error, Status: 503, TTL: chaos.Duration(time.Minute)})
//	inj.Clear(in.ID)
//
//	             Inject, Clear, TTL
//	                    │
//	                    ▼
//	call ──► Decide ─► faults that match, in order ──► Decision ──► the seam applies it:
//	         (target, tool)   after? probability? count?             Transport, or whoever holds an MCP connection
//
// # Targets
//
// A target is llm/<entry>, mcp/<upstream> or mcp/<upstream>/<tool>. A pattern
// has the syntax of [path.Match] in each segment. One of two segments hits
// all requests of a server, with its handshake, lists and probes; one of three
// hits the calls of its tools alone.
//
// # Faults
//
// Each [Kind] has a file of its own, which says what it does to a provider and
// to a server. Latency adds to whatever else is active; of the other faults that
// match a call the one that was injected first acts.
//
// # Promises
//
// Nothing is injected unless [Options].Enabled. Every fault has an end: its
// time to live, Clear or Close. Then all is as before, and calls that a fault
// holds back go on. A fault decides by a random source of its own that depends
// on its seed, the target and how many calls of that target it has seen: the same
// seed and the same calls meet the same faults, whatever other targets do meanwhile.
// Count and After are of the calls of all its targets together, and flap and
// rate_limit go by the clock. Each hit is told to those who Watch; an error
// that was made wraps an [*Injected].
//
// # Concurrency
//
// An [Injector] is safe for concurrent use. It starts no goroutines. Without an
// active fault Decide costs one atomic load.
package chaos
