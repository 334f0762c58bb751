package chaos

// kill ends the server in the midst of a call. A process of ours gets SIGKILL
// with its whole group and is started again as after any crash; of a server
// that is not ours the connection ends, and until the fault is over it is not
// there for a new one. A provider is not there.
//
// Count 1 is one crash. Without a count every request is the death of the next
// process: a crash loop.
var kill = kind{
	about: "the server dies in mid-call; its process really does",
	start: always(Decision{Action: Die}),
}
