package wire

import (
	"runtime"
	"syscall"
	"unsafe"
)

// vectors is the argument of writev.
type vectors struct {
	iov [2 * maxGather]syscall.Iovec
}

var newline = []byte{'\n'}

// gather writes the next lines, each followed by a line break, without a copy.
func (b *lineBatch) gather(fd uintptr) (int, error) {
	n, off := 0, b.off
	for k, line := range b.lines[b.first:] {
		if k == maxGather {
			break
		}
		if off < len(line) {
			b.iov[n].Base = &line[off]
			b.iov[n].SetLen(len(line) - off)
			n++
		}
		b.iov[n].Base = &newline[0]
		b.iov[n].SetLen(1)
		n++
		off = 0
	}
	wrote, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&b.iov[0])), uintptr(n))
	runtime.KeepAlive(b)
	for k := range b.iov[:n] {
		b.iov[k].Base = nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(wrote), nil
}

// setPipeSize asks for a larger pipe buffer, so that a long line takes fewer
// turns between the two processes.
func setPipeSize(conn syscall.RawConn, size int) {
	const setPipeSize = 1031 // F_SETPIPE_SZ
	_ = conn.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, setPipeSize, uintptr(size))
	})
}
