package wire

import (
	"errors"
	"syscall"
)

// maxGather bounds the lines of one write.
const maxGather = 64

// lineBatch is a run of lines that one owner writes piece by piece.
type lineBatch struct {
	lines [][]byte
	first int // index of the line that is written next
	off   int // bytes of it that are written, its line break included

	scratch []byte
	try     func(fd uintptr) bool
	wait    bool
	n       int
	err     error
	vectors
}

// init binds the callback once, so that a write allocates nothing.
func (b *lineBatch) init() { b.try = b.attempt }

func (b *lineBatch) empty() bool { return b.first == len(b.lines) }

// swap takes the lines of a queue and returns an empty slice for the next.
func (b *lineBatch) swap(queue [][]byte) [][]byte {
	old := b.lines
	clear(old)
	b.lines, b.first, b.off = queue, 0, 0
	return old[:0]
}

// advance notes that n more bytes are written and returns the lines that are
// thereby finished and their size.
func (b *lineBatch) advance(n int) (lines, bytes int) {
	n += b.off
	for !b.empty() && n > len(b.lines[b.first]) {
		size := len(b.lines[b.first])
		release(b.lines[b.first])
		b.lines[b.first] = nil
		n -= size + 1
		b.first++
		lines++
		bytes += size
	}
	b.off = n
	return lines, bytes
}

// join copies the next lines into one buffer, which is valid until the next call.
func (b *lineBatch) join() []byte {
	out := b.scratch[:0]
	for k, line := range b.lines[b.first:] {
		if k > 0 && len(out)+len(line) > chunkSize {
			break
		}
		out = append(append(out, line...), '\n')
	}
	if b.scratch = out; cap(out) > chunkKeep {
		b.scratch = nil
	}
	return out[b.off:]
}

// writeTo writes the next lines with one system call; with wait it waits until
// the file takes at least a byte.
func (b *lineBatch) writeTo(conn syscall.RawConn, wait bool) (int, error) {
	b.wait, b.n, b.err = wait, 0, nil
	if err := conn.Write(b.try); err != nil {
		return 0, err
	}
	return b.n, b.err
}

// attempt is called by conn; false asks it to wait and call again.
func (b *lineBatch) attempt(fd uintptr) bool {
	for {
		b.n, b.err = b.gather(fd)
		switch {
		case errors.Is(b.err, syscall.EINTR):
			continue
		case errors.Is(b.err, syscall.EAGAIN):
			b.n, b.err = 0, nil
			return !b.wait
		}
		return true
	}
}
