package chaos

// drop breaks the connection when the request has had its effect, before its
// answer is whole. Over HTTP it is that of one request; over stdio and
// HTTP+SSE, which have only one, all calls under way are lost with it.
var drop = kind{
	about: "the connection breaks in mid-call, after the request was executed",
	start: always(Decision{Action: Break}),
}
