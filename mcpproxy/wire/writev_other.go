//go:build !linux

package wire

import "syscall"

type vectors struct{}

// gather writes the next lines, each followed by a line break.
func (b *lineBatch) gather(fd uintptr) (int, error) {
	n, err := writeFD(fd, b.join())
	return max(n, 0), err
}

func setPipeSize(syscall.RawConn, int) {}
