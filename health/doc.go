// Package health holds the words that every part of AgentArmor uses for how
// an upstream is doing and how a call ended.
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
// class means.
//
// One rule goes beyond the table of the design: the errors of 2026-07-28 that
// refuse a request before it reaches a handler (-32020, -32021, -32022) are
// [Rejected] like -32600, whatever HTTP status came with them.
//
// # Concurrency
//
// A Tracker is safe for concurrent use. OnChange is called without a lock held,
// by the goroutine that made the change. The package starts no goroutines.
package health
