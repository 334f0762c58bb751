// Command agentarmor is one MCP endpoint in front of many MCP servers.
//
//	agentarmor serve     run the endpoint on stdio, or on HTTP with --transport http
//	agentarmor check     try the config and start every upstream once
//	agentarmor status    ask a running endpoint how it is doing; --watch keeps asking
//	agentarmor demo      see it work on fakes, without keys
//	agentarmor chaos     break what is behind a running endpoint, for a while
//	agentarmor crashtest measure what resilience buys, on fakes
//	agentarmor version   print the version
//
// The exit code is 0 when all went well, 1 when something failed and 2 for a
// mistake on the command line or in the config file. stdout carries MCP, or
// what a command was asked for; everything else goes to stderr.
//
// # Config
//
// A config file takes this way; each step is a file of that name:
//
//	text ─ tree, jsontree ─► nodes with places ─ decode, keys ─► document ─ config ─► settings
//	                                              │
//	                           expand, scalars, rawjson, validate: every value, all problems at once
//	                           agree: values that make sense only together
//
// Variables are expanded after parsing, so that a value with quotes or
// colons cannot change the structure. Problems are reported together, in the
// order of the file, and never quote what came from a variable. Keys that other
// clients keep in the same file are ignored with a warning (foreign).
//
// # Crash test
//
// crashtest runs two lanes (crashlane) one after the other, each in a world of
// its own (crashworld: an MCP server on loopback and fake models) that meets the
// same faults (crashfaults) at the same pace (crashpace); crashreport and
// crashhtml sum up.
//
// # Life of serve
//
// wire builds everything, the chain of models (models) first, and starts
// nothing. start brings the upstreams up in the background and follows the
// config file (watch); the transport answers meanwhile. The first signal, or the
// end of stdin, ends it: no reload any more, the HTTP listener closes, the proxy
// closes its streams, sessions and upstreams, then the chain closes, with five
// seconds of grace. A second signal or a panic kills the upstreams' process
// groups and ends at once.
package main
