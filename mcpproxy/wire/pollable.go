package wire

import "os"

// pipeSize is asked for on pipes we own or serve: a 100 kB line then takes one
// turn instead of two. It stays far below what Linux allows one user in total.
const pipeSize = 256 << 10

// Pollable returns a copy of a standard stream in non-blocking mode if it is
// a pipe or a socket, else f itself. A goroutine blocked in a plain read or write of a pipe
// holds its processor until the scheduler takes it away, which stalls
// others for up to 10 ms. Terminals are left alone, since the mode is
// shared with the shell and would outlive us.
func Pollable(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 || pollable(f) {
		return f
	}
	return nonblocking(f)
}
