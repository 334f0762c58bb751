package wire

import (
	"bytes"
	"fmt"
	"io"
)

const (
	chunkSize = 64 << 10  // what one read of a default pipe can return
	chunkMax  = 512 << 10 // of a chunk for several long lines
	chunkKeep = 1 << 20   // a larger chunk is given up after its long line
	headSize  = 4 << 10   // of a line over the limit
)

// TooLong reports a line over the limit, which was skipped. Reading goes on
// behind it.
type TooLong struct {
	Head []byte // its first 4 kB
}

func (e *TooLong) Error() string {
	return fmt.Sprintf("a line over the limit, which starts with %d bytes of JSON", len(e.Head))
}

// LineReader cuts a stream into lines. The lines alias the chunks they were read
// into, which are filled from front to back and never reused: a line may be
// kept, at the price of its chunk. It is not safe for concurrent use.
type LineReader struct {
	r     io.Reader
	limit int

	chunk    []byte
	pos, end int // chunk[pos:end] was read but not handed out
	newline  int // index of the first newline in it, -1 if there is none
	scanned  int // up to where it was searched
	longest  int // line of this chunk
	err      error
}

// NewLineReader returns a reader of the lines of r, each of at most limit bytes.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: r, limit: limit, newline: -1}
}

// Next returns the next line without its end; more tells that another whole line
// is already there. Blank lines and Content-Length headers (of clients that
// frame like LSP) are passed over. After the last line, with or without a line
// break, comes the error of the underlying reader; a *TooLong error stands for
// one skipped line.
func (l *LineReader) Next() (line []byte, more bool, err error) {
	for {
		for l.newline < 0 {
			if l.err != nil {
				return l.rest()
			}
			if l.end-l.pos > l.limit {
				err := l.skip()
				return nil, l.newline >= 0, err
			}
			l.fill()
		}
		line = l.take(l.newline, l.newline+1)
		if len(line) > l.limit {
			return nil, l.newline >= 0, &TooLong{Head: bytes.Clone(line[:min(headSize, len(line))])}
		}
		if line = bytes.TrimSpace(line); !blank(line) {
			return line, l.newline >= 0, nil
		}
	}
}

// rest returns what stands behind the last line break, then the error.
func (l *LineReader) rest() ([]byte, bool, error) {
	line := bytes.TrimSpace(l.chunk[l.pos:l.end])
	l.pos = l.end
	if len(line) > l.limit {
		return nil, false, &TooLong{Head: bytes.Clone(line[:min(headSize, len(line))])}
	}
	if blank(line) {
		return nil, false, l.err
	}
	return line, false, nil
}

// take hands out chunk[pos:end] and goes on at next.
func (l *LineReader) take(end, next int) []byte {
	line := l.chunk[l.pos:end:end]
	l.pos, l.scanned = next, next
	l.longest = max(l.longest, len(line))
	l.search()
	if len(l.chunk) > chunkKeep {
		l.grow(chunkSize)
	}
	return line
}

// search looks for the next newline in what was not searched yet.
func (l *LineReader) search() {
	if l.newline = bytes.IndexByte(l.chunk[l.scanned:l.end], '\n'); l.newline >= 0 {
		l.newline += l.scanned
	}
	l.scanned = l.end
}

// fill reads once, into a new chunk if this one is full, or if it has no room
// for a line like those before, which would have to move in the middle.
func (l *LineReader) fill() {
	begun, room := l.end-l.pos, len(l.chunk)-l.end
	if room < chunkSize/16 || begun == 0 && room < l.longest {
		l.grow(max(chunkSize, min(2*begun, l.limit+chunkSize), min(4*l.longest, chunkMax)))
	}
	n, err := l.r.Read(l.chunk[l.end:])
	l.end += n
	l.err = err
	l.search()
}

// grow moves what was not handed out to a new chunk with room for size bytes.
func (l *LineReader) grow(size int) {
	left := l.chunk[l.pos:l.end]
	chunk := make([]byte, max(size, len(left)+chunkSize/2))
	copy(chunk, left)
	if l.newline >= 0 {
		l.newline -= l.pos
	}
	l.scanned -= l.pos
	l.chunk, l.pos, l.end, l.longest = chunk, 0, len(left), 0
}

// skip reads on to the end of a line over the limit.
func (l *LineReader) skip() error {
	e := &TooLong{Head: bytes.Clone(l.chunk[l.pos:][:min(headSize, l.end-l.pos)])}
	scratch := make([]byte, chunkSize)
	l.chunk, l.pos, l.end, l.scanned = nil, 0, 0, 0
	for l.err == nil {
		var n int
		n, l.err = l.r.Read(scratch)
		if i := bytes.IndexByte(scratch[:n], '\n'); i >= 0 {
			l.chunk, l.pos, l.end, l.scanned = scratch, i+1, n, i+1
			l.search()
			break
		}
	}
	return e
}

// blank tells lines that carry no message.
func blank(line []byte) bool {
	const header = "content-length:"
	return len(line) == 0 ||
		line[0] != '{' && len(line) > len(header) && bytes.EqualFold(line[:len(header)], []byte(header))
}
