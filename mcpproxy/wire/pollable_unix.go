//go:build unix

package wire

import (
	"os"
	"syscall"
)

// nonblocking duplicates f, since its own mode is fixed when it is opened, and
// returns f if that fails.
func nonblocking(f *os.File) *os.File {
	conn, err := f.SyscallConn()
	if err != nil {
		return f
	}
	fd := -1
	_ = conn.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, err = syscall.Dup(int(old)); err != nil {
			fd = -1
			return
		}
		syscall.CloseOnExec(fd)
	})
	if fd < 0 {
		return f
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		_ = syscall.Close(fd)
		return f
	}
	setPipeSize(conn, pipeSize)
	return os.NewFile(uintptr(fd), f.Name())
}
