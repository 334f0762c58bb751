package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// readAll returns what Next reports, line by line.
func readAll(r io.Reader, limit int) (got []string, more []bool) {
	l := NewLineReader(r, limit)
	for {
		line, m, err := l.Next()
		if long, ok := errors.AsType[*TooLong](err); ok {
			got, more = append(got, fmt.Sprintf("too long: %.5s (%d)", long.Head, len(long.Head))), append(more, m)
			continue
		}
		if err != nil {
			return append(got, err.Error()), more
		}
		got, more = append(got, string(line)), append(more, m)
	}
}

func TestLineReader(t *testing.T) {
	in := "one\n\n \r\ntwo\r\nContent-Length: 5\r\n\r\n" + strings.Repeat("x", 5000) + "\nthree\n" + strings.Repeat("y", 200_000) + "\n\nlast"
	want := []string{"one", "two", "too long: xxxxx (4096)", "three", "too long: yyyyy (4096)", "last", "EOF"}
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(in), "bytewise": iotest.OneByteReader(strings.NewReader(in)), "halves": iotest.HalfReader(strings.NewReader(in)),
		"data with EOF": iotest.DataErrReader(strings.NewReader(in)),
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := readAll(r, 4999)
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestLineReaderMore(t *testing.T) {
	_, more := readAll(strings.NewReader("a\nb\nc"), 100)
	if d := cmp.Diff([]bool{true, false, false}, more); d != "" {
		t.Error(d)
	}
}

func TestLineReaderTooLongAtTheEnd(t *testing.T) {
	for _, n := range []int{5001, 500_000} {
		got, _ := readAll(strings.NewReader(strings.Repeat("x", n)), 5000)
		if d := cmp.Diff([]string{"too long: xxxxx (4096)", "EOF"}, got); d != "" {
			t.Error(n, d)
		}
	}
}

// Lines must stay as they were while later ones are read.
func TestLineReaderKeepsLines(t *testing.T) {
	var in bytes.Buffer
	var want []string
	for i := range 100 {
		want = append(want, strings.Repeat(string(rune('a'+i%26)), 1+i*i%9000+i%7*20_000))
		in.WriteString(want[i] + "\n")
	}
	l := NewLineReader(&in, 1<<20)
	var got [][]byte
	for line, _, err := l.Next(); err == nil; line, _, err = l.Next() {
		if cap(line) != len(line) && cap(line) > len(line)+1 {
			t.Fatal("a line can grow into the next")
		}
		got = append(got, line)
	}
	for i := range want {
		if want[i] != string(got[i]) {
			t.Fatalf("line %d has changed", i)
		}
	}
}

func newPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// Every writer keeps the order of each caller and loses nothing, whatever the
// mix of sizes and hints, also when the reader is slow to come.
func TestLineWriterOrder(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, kind := range []string{"pipe", "io.Writer"} {
		t.Run(kind, func(t *testing.T) {
			r, pw := newPipe(t)
			var w io.Writer = pw
			if kind == "io.Writer" {
				w = struct{ io.Writer }{pw}
			}
			lw := NewLineWriter(w, Limits{Queue: 5000}, nil)
			const callers, each = 8, 300
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := range each {
						raw := fmt.Appendf(nil, "%d %d %s", c, i, strings.Repeat("x", i%50*i%3000))
						if err := lw.Send(raw, i%3 == 0); err != nil {
							t.Errorf("caller %d, message %d: %v", c, i, err)
						}
					}
				})
			}
			go func() {
				wg.Wait()
				lw.Flush(context.Background())
				pw.Close()
			}()
			var next [callers]int
			sc := bufio.NewScanner(r)
			for sc.Scan() {
				var c, i int
				if _, err := fmt.Sscan(sc.Text(), &c, &i); err != nil || next[c] != i {
					t.Fatalf("caller %d: got message %d, want %d (%v)", c, i, next[c], err)
				}
				next[c]++
			}
			for c, n := range next {
				if n != each {
					t.Errorf("caller %d: %d messages", c, n)
				}
			}
			lw.Close(t.Context())
		})
	}
}

func TestLineWriterNeverBlocks(t *testing.T) {
	defer goleak.VerifyNone(t)
	r, w := newPipe(t)
	lw := NewLineWriter(w, Limits{Queue: 10, Message: 1 << 20}, nil)
	big := bytes.Repeat([]byte("x"), 1<<20)
	sent := 0
	for ; sent < 100; sent++ {
		if err := lw.Send(big, false); err != nil {
			if err != ErrFull {
				t.Fatal(err)
			}
			break
		}
	}
	if sent < 3 || sent > 5 { // four times the limit, and what the pipe took
		t.Errorf("%d messages of 1 MiB were queued", sent)
	}
	go io.Copy(io.Discard, r)
	lw.Flush(t.Context())
	if err := lw.Send(big, false); err != nil {
		t.Errorf("after the reader caught up: %v", err)
	}
	lw.Close(t.Context())
	if err := lw.Send(big, false); err != ErrGone {
		t.Errorf("after Close: %v", err)
	}
	w.Close()
}

func TestLineWriterCountsLines(t *testing.T) {
	defer goleak.VerifyNone(t)
	pr, pw := io.Pipe()
	lw := NewLineWriter(pw, Limits{Queue: 3}, nil)
	for range 3 {
		if err := lw.Send([]byte("x"), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := lw.Send([]byte("x"), false); err != ErrFull {
		t.Errorf("got %v", err)
	}
	pr.Close()
	lw.Flush(t.Context())
	lw.Close(t.Context())
}

func TestLineWriterAfterAnError(t *testing.T) {
	defer goleak.VerifyNone(t)
	r, w := newPipe(t)
	heard := make(chan error, 2)
	lw := NewLineWriter(w, Limits{}, func(err error) { heard <- err })
	r.Close()
	for range 2 {
		if err := lw.Send([]byte("x"), false); err != ErrGone {
			t.Errorf("got %v", err)
		}
	}
	lw.Flush(t.Context())
	lw.Close(t.Context())
	lw.Close(t.Context())
	if len(heard) != 1 {
		t.Errorf("the error was told %d times", len(heard))
	}
}

// Close must come back although the reader never reads.
func TestLineWriterCloseWhenFull(t *testing.T) {
	defer goleak.VerifyNone(t)
	_, w := newPipe(t)
	lw := NewLineWriter(w, Limits{}, nil)
	_ = lw.Send(make([]byte, 1<<20), false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	lw.Close(ctx)
}

func BenchmarkLineWriter(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, w := newPipe(b)
			go io.Copy(io.Discard, r)
			lw := NewLineWriter(w, Limits{}, nil)
			raw := bytes.Repeat([]byte("x"), n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := lw.Send(raw, false); err != nil {
					lw.Flush(b.Context())
				}
			}
			lw.Close(b.Context())
		})
	}
}

func BenchmarkLineReader(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			line := append(bytes.Repeat([]byte("x"), n), '\n')
			l := NewLineReader(&repeatedLine{line: line}, 1<<20)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := l.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// repeatedLine repeats one line, a pipe's worth per read.
type repeatedLine struct {
	line []byte
	off  int
}

func (e *repeatedLine) Read(p []byte) (n int, err error) {
	p = p[:min(len(p), 64<<10)]
	for n < len(p) {
		k := copy(p[n:], e.line[e.off:])
		n += k
		if e.off += k; e.off == len(e.line) {
			e.off = 0
		}
	}
	return n, nil
}
