//go:build unix

package wire

import (
	"os"

	"golang.org/x/sys/unix"
)

// hungUp tells that nobody can read any more what is written to f, a pipe or socket.
func hungUp(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	_ = conn.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return gone
}
