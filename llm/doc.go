// Package llm asks language models for answers and goes on asking, another
// model if it must, until there is one: an answer every time one can be had, an
// honest account of how it was had, and never a wrong retry.
//
//	chain, err := llm.FromEnv() // GEMINI_API_KEY, GROQ_API_KEY
//	resp, err := chain.Complete(ctx, llm.Prompt("Why is the sky blue?"))
//	fmt.Println(resp.Text, resp.Provider, resp.Degraded)
//
// [New] takes entries of your own: [NewGemini], [NewOpenAI] for any
// OpenAI-compatible API (Groq, OpenAI, Ollama, vLLM), or anything else that is a
// [Provider]. [Chain.Stream] hands out the text as it arrives.
//
//	                 strategy            gate, breaker, limits
//	Complete ──► order of entries ──► attempt at one entry ──► Provider
//	    ▲               │                      │                  │
//	    │   none can be asked now         classify, judge ◄───────┘
//	    │               ▼                      │
//	    │     wait: own delay, or queue        ├─ answer ─────────► Response + Trace
//	    └── degraded, when no wait fits        └─ failure: next entry, at once
//
// # What happens to a call
//
// The entries are tried in the order of the [Strategy], the ones that the
// request prefers first. Passed over is an entry whose breaker is open, that
// asked to be left alone, whose rate limit is used up as far as its headers or
// the config tell, whose model is gone, or that cannot take the request
// (length, images, tools).
//
// A failure leads to the next entry at once. Only a transient one (408, 429,
// 498, 5xx, a timeout, a broken connection) has the same entry asked again, up to
// Attempts times, and only when its delay has passed, that of its Retry-After or
// of the backoff, and no other entry has answered meanwhile: a call never waits
// while somebody can be asked. What was asked and refused for good (400, 401,
// 413, …) is not asked again. An answer that is empty, cut, blocked or not what the
// schema says counts as none; of those that are cut, the first is returned if
// nobody does better, and one as long as MaxTokens allows is what was asked for. A
// stream has an answer to a schema in one piece, once it is known to match.
//
// When nobody can be asked, the call waits for its own retries or, in the
// [Queue], for a recovery, if that fits into the budget. If not, the response is
// Degraded. If every entry finds the request itself at fault, that is an error.
//
// The budget is Timeout for the whole call. One attempt may take its entry's
// timeout, but half of what is left at most while an entry remains that was not asked yet.
// What a caller's short Timeout cuts is no fault of an entry's; if nothing else
// has happened, the degraded answer says that the timeout was too short.
//
// # What providers are protected from
//
// Each entry has a breaker (2 failures, 15 s, 2 successes; see package health).
// Failures that say nothing about whether a provider works, such as a 429 or a
// refused key, leave the entry alone for a time instead: as long as a 429 asks,
// an hour for a quota of the day, a minute for a key, a day for a model that is
// gone. After a failure or a rest, and at first, few calls are sent at once until
// one has succeeded; the others ask another entry, or wait for those: a crowd does
// not reach a provider that is down.
//
// # Concurrency and shutdown
//
// A Chain is safe for concurrent use and starts goroutines only to hedge, which
// end before the call does. When the context of a call ends, the call returns at
// once and its requests are cancelled. [Chain.Close] ends what the providers keep.
//
// # Secrets
//
// Keys are sent in headers and appear in no error, trace, event or status.
//
// # Testing
//
// [Fake] is a Provider that answers from a script. Time is package time's, so
// testing/synctest runs hours in no time.
package llm
