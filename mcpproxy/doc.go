// Package mcpproxy is the endpoint: it puts any number of MCP servers
// (upstreams) behind one, moves their messages as raw JSON, and stays up when
// they do not.
//
//	          client                                                 upstream
//	             │ stdio · streamable HTTP · HTTP+SSE                    ▲
//	             ▼                                                       │
//	wire.Session, wire.Stream ──► Proxy.Handle ──► route ──► call ──► conn, wire.Peer
//	             ▲                    (route.go)  (own.go)  (call.go)  (conn.go)
//	             └────── responses, progress, logs, questions ◄──────────┘
//
// # Use
//
//	p, err := mcpproxy.New(mcpproxy.Config{Upstreams: ups})
//	p.Start(ctx)                          // upstreams come up in the background
//	err = p.ServeStdio(ctx, stdin, stdout) // or http.Serve(l, p.HTTP(options))
//	p.Close(ctx)                          // nothing is left of them afterwards
//
// # Where things are
//
// route.go decides who answers a method, own.go and owncall.go answer what is
// ours (package builtin), catalog.go and names.go hold the merged lists, call.go is one request on its
// way there and back. guard.go says in which order a call passes what protects
// its upstream and itself: budget.go, bulkhead.go, toolguard.go (the breaker of a
// tool), retry.go and fallback.go, with waiting.go for the pauses between;
// response.go is the server's answer as its client gets it, answer.go what AgentArmor
// says where there is none. plane.go (the breaker of a server) and toolprobe.go probe.
// pins.go compares definitions with those first seen, observe.go feeds metrics,
// traces and events, transition.go tells of changes,
// alerts.go and alertrules.go of what a person should look at, webhook.go elsewhere too. llm.go tells what happens
// to the chain of models (package llm), systemnote.go tells the models what is down.
// chaos.go and chaospeer.go put the faults of package chaos between the endpoint and its
// upstreams, chaosmarks.go marks what they have a part in.
// ask.go brings a question of a server (sampling, elicitation, roots) to the client whose
// call caused it, sampling.go has the chain answer for a client that cannot sample,
// mrtr.go and requeststate.go map such questions between the generations,
// subs.go and changes.go tell who subscribed. instance.go and the files around
// it keep one connection to one upstream up.
//
// # Promises
//
// What an upstream says inside params, result, error, definitions and content
// reaches the client byte for byte: key order, number spelling, string escapes.
// Changed are only names and colliding URIs, ids, progress tokens,
// subscription ids, the hop's own _meta keys, the cache hints of merged lists, and what
// the client's generation requires of a result that the upstream's did not
// know (resultType; ttlMs and cacheScope of resources/read; -32002 is -32602).
// A call's notifications leave before its response and in order. A question
// never reaches a client that did not cause it.
//
// Where AgentArmor acts it says so: a call that was not served, or was retried,
// or is answered from elsewhere has _meta["agentarmor/call"] with the upstream, the
// outcome (package health), whether it was executed, the reason and when to try
// again. What may have been executed is sent again only if it is idempotent. One
// upstream never waits for another.
//
// # One call on every hop
//
// A client calls github__create_issue; the upstream knows it as create_issue.
// "2025" is a revision up to 2025-11-25, "2026" is 2026-07-28; M stands for
// io.modelcontextprotocol. testdata/wire holds the same lines, and tests them.
//
// 2025 client, 2025 upstream:
//
//	client → {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{"n":9007199254740993},"_meta":{"progressToken":1}}}
//	→ upstream {"jsonrpc":"2.0","id":"a5","method":"tools/call","params":{"name":"create_issue","arguments":{"n":9007199254740993},"_meta":{"progressToken":"p5"}}}
//	upstream → {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p5","progress":0.50}}
//	→ client {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.50}}
//	upstream → {"jsonrpc":"2.0","id":"a5","result":{"content":[{"type":"text","text":"done"}]}}
//	→ client {"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"done"}]}}
//
// 2025 client, 2026 upstream: the hop's _meta is added, and a result that asks
// for input is asked of the client before the call is made again.
//
//	client → {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{}}}
//	→ upstream {"jsonrpc":"2.0","id":"a6","method":"tools/call","params":{"name":"create_issue","arguments":{},"_meta":{"progressToken":"p6","M/protocolVersion":"2026-07-28","M/clientInfo":{"name":"agentarmor","version":"9.9"},"M/clientCapabilities":{"elicitation":{}}}}}
//	upstream → {"jsonrpc":"2.0","id":"a6","result":{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"s"}}
//	→ client {"jsonrpc":"2.0","id":"s1","method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}
//	client → {"jsonrpc":"2.0","id":"s1","result":{"action":"accept","content":{}}}
//	→ upstream {"jsonrpc":"2.0","id":"a7","method":"tools/call","params":{"name":"create_issue","arguments":{},"_meta":{"progressToken":"p7","M/protocolVersion":"2026-07-28","M/clientInfo":{"name":"agentarmor","version":"9.9"},"M/clientCapabilities":{"elicitation":{}}},"requestState":"s","inputResponses":{"who":{"action":"accept","content":{}}}}}
//	upstream → {"jsonrpc":"2.0","id":"a7","result":{"resultType":"complete","content":[{"type":"text","text":"done"}]}}
//	→ client {"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[{"type":"text","text":"done"}]}}
//
// 2026 client, 2025 upstream: the hop's _meta is removed; a question of the
// upstream in mid-call ends the client's request while the upstream's is kept.
//
//	client → {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}}}}}
//	→ upstream {"jsonrpc":"2.0","id":"a5","method":"tools/call","params":{"name":"create_issue","arguments":{},"_meta":{"progressToken":"p5"}}}
//	upstream → {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}
//	→ client {"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","inputRequests":{"a1":{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"v1.<id>.<mac>","_meta":{"M/serverInfo":{"name":"agentarmor","version":"9.9"}}}}
//	client → {"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}}},"requestState":"v1.<id>.<mac>","inputResponses":{"a1":{"action":"accept","content":{}}}}}
//	→ upstream {"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{}}}
//	upstream → {"jsonrpc":"2.0","id":"a5","result":{"content":[{"type":"text","text":"done"}]}}
//	→ client {"jsonrpc":"2.0","id":8,"result":{"content":[{"type":"text","text":"done"}],"_meta":{"M/serverInfo":{"name":"agentarmor","version":"9.9"}},"resultType":"complete"}}
//
// 2026 client, 2026 upstream: the client's capabilities pass verbatim, and a
// requestState is bound to its upstream (Z2l0aHVi is github) and principal.
//
//	client → {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}}}}}
//	→ upstream {"jsonrpc":"2.0","id":"a6","method":"tools/call","params":{"name":"create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}},"progressToken":"p6","M/clientInfo":{"name":"agentarmor","version":"9.9"}}}}
//	upstream → {"jsonrpc":"2.0","id":"a6","result":{"resultType":"input_required","requestState":"s"}}
//	→ client {"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","requestState":"u1.Z2l0aHVi.<mac>.s","_meta":{"M/serverInfo":{"name":"agentarmor","version":"9.9"}}}}
//	client → {"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"github__create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}}},"requestState":"u1.Z2l0aHVi.<mac>.s"}}
//	→ upstream {"jsonrpc":"2.0","id":"a7","method":"tools/call","params":{"name":"create_issue","arguments":{},"_meta":{"M/protocolVersion":"2026-07-28","M/clientCapabilities":{"elicitation":{}},"progressToken":"p7","M/clientInfo":{"name":"agentarmor","version":"9.9"}},"requestState":"s"}}
//	upstream → {"jsonrpc":"2.0","id":"a7","result":{"resultType":"complete","content":[{"type":"text","text":"done"}]}}
//	→ client {"jsonrpc":"2.0","id":8,"result":{"resultType":"complete","content":[{"type":"text","text":"done"}],"_meta":{"M/serverInfo":{"name":"agentarmor","version":"9.9"}}}}
//
// # Concurrency and shutdown
//
// A Proxy is safe for concurrent use. Handle never blocks on a peer. No lock is
// held across I/O or a callback. Every goroutine belongs to the Proxy, an instance
// or a peer, and Close waits for all of them.
package mcpproxy
