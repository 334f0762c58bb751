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

// A lone message must be in the pipe when Send returns: no goroutine switch.
func TestLineWriterWritesAtOnce(t *testing.T) {
	r, w := newPipe(t)
	lw := NewLineWriter(w, Limits{}, nil)
	defer lw.Close(t.Context())
	buf := make([]byte, 100)
	for range 100 {
		if err := lw.Send([]byte("hello"), false); err != nil {
			t.Fatal(err)
		}
		conn, _ := r.SyscallConn()
		n := 0
		_ = conn.Read(func(fd uintptr) bool { n, _ = readFD(fd, buf); return true })
		if string(buf[:max(n, 0)]) != "hello\n" {
			t.Fatalf("got %q", buf[:max(n, 0)])
		}
	}
}

func TestPollable(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, _ := newPipe(t)
	for _, f := range []*os.File{file, null, r} {
		if Pollable(f) != f {
			t.Errorf("%s was reopened", f.Name())
		}
	}
	_, w := newPipe(t)
	w.Fd() // puts it into blocking mode, like a standard stream
	std := os.NewFile(dup(t, w), "std")
	defer std.Close()
	p := Pollable(std)
	if p == std || !pollable(p) {
		t.Error("a blocking pipe must become pollable")
	}
	p.Close()
}
