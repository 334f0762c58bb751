//go:build unix

package wire

import (
	"os"
	"syscall"
	"testing"
)

func readFD(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func dup(t *testing.T, f *os.File) uintptr {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return uintptr(fd)
}

// alive tells whether a process group has members.
func alive(pgid int) bool { return syscall.Kill(-pgid, 0) == nil }
