// Package health tells how an upstream is doing: its state, how its calls end,
// how many of them and how fast, and whether the next one should be made at all.
//
//	call ──► Breaker.Allow ──► the upstream ──► Evidence ──► Classify ──► Class
//	               ▲                                                       │
//	               └── Permit.Done(Class.Tool) ── Window.Add ── Tracker ◄──┘
//	                              Prober ── Breaker.Record, Reset
//
// # States
//
// A [Tracker] holds the [State] of one upstream with its reason, since when it
// holds, the next attempt, the last error and the number of restarts. Whoever
// owns the upstream changes it through [Tracker.Set]; everyone else reads a
// [Snapshot]:
//
//	t := health.NewTracker(health.Starting, health.Options{OnChange: publish})
//	t.Set(health.Down, "exited with status 1", time.Now().Add(time.Second))
//	t.Snapshot().NextAttempt
//
// # Outcomes
//
// [Classify] turns what is known about a finished call into one [Class]. It
// looks at status codes, JSON-RPC codes and transport failures only: a text
// never decides. The table in outcome.go is the only place that knows what a
// class means: whether the call had its effect, whether it may be made again,
// and what it says to the two breakers it concerns.
//
// Two rules go beyond the table of the design. A message over our size limit is
// [TooLarge], no [Malformed]: it is no fault of the server, and would be as large
// again. The errors of 2026-07-28 that
// refuse a request before it reaches a handler (-32020, -32021, -32022) are
// [Rejected] like -32600, whatever HTTP status came with them.
//
// # Breakers
//
// A [Breaker] is closed until calls fail: three in a row, or half of at least
// ten within a minute. Then it is open and admits nothing for about 30 s. Then
// it is half-open and admits one call at a time as a trial: three successes
// close it, one failure opens it again for twice as long, up to 5 min, each time
// ± 20 % so that those who failed together do not come back together. All
// numbers but the jitter are [BreakerOptions].
//
//	p, ok := b.Allow()
//	if !ok {
//		return busyUntil(b.Until())
//	}
//	class := call(ctx) // ctx has a deadline: a trial that never ends holds its place
//	p.Done(class.Tool(code))
//
// What [Neutral] (or [Ask]) is said of counts nowhere; if it was a trial, the
// next one may begin. Only a failure opens a breaker, never the success that
// completes the ten calls. A call counts when it ends, and not at all if the
// breaker has changed its state since it began.
//
// There are two planes. That of a tool (does it work?) works as above. That of
// the server (can it be reached?) is Manual: no agent's call is ever its trial.
// It is fed with [Breaker.Record], probes try the server while it is open, and
// the first good one closes it with [Breaker.Reset].
//
// gobreaker keeps the window and the state machine; what it does not do, or does
// differently, is kept from it:
//   - Its count of failures in a row shrinks as its window moves: ours does not.
//   - It files a result under the time its call began, and drops it once that is
//     out of the window, so that timeouts of a minute never counted: it only
//     sees calls that begin and end at the same moment.
//   - For the same reason a trial without an end cannot block it, and it never
//     has several at a time.
//   - Its time of being open is fixed: ours is a gate in front of it.
//   - It becomes half-open only when asked: [Breaker.Snapshot] looks at the time.
//   - Its OnStateChange runs under its mutex: ours runs after everything is
//     unlocked, and may use the breaker.
//   - It cannot be reset: a new one takes its place.
//
// Its window moves in tenths, so that it looks back on 54 to 60 seconds of 60.
//
// # Windows
//
// A [Window] has the number of calls, the error rate and the 50th and 95th
// percentile of the latency over the last 5 min, in steps of 10 s. Percentiles
// come from a logarithmic histogram and are within 7 % (below 8 µs: half a
// microsecond).
//
// # Probes
//
// A [Prober] calls Check every 30 s, or every 5 s while the thing is down, counted
// from start to start, so that a probe that times out costs no time. It leaves
// out those that Skip says are not needed, and makes one at once after
// [Prober.Kick]. What a result means is its owner's business.
//
// # Concurrency
//
// All types are safe for concurrent use. Callbacks run without a lock held, in the
// goroutine that made the change; from several goroutines they may arrive out of
// order, and the snapshot is the truth. A closed breaker admits without a lock
// and counts under its own; no lock is held for longer than that. The package
// starts no goroutines: [Prober.Run] belongs to its caller, and returns soon after
// its context ends.
package health
