package chaos

// hang is a server that takes requests and answers none. When the fault ends,
// requests that somebody still waits for go on, as after SIGCONT.
var hang = kind{
	about: "requests get no answer until the fault ends",
	start: always(Decision{Action: Hold}),
}
