package wire

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"time"
)

// overHead is how much of an oversized event is kept: enough to find its id.
const overHead = 4 << 10

// sseEvent is one event that carries data.
type sseEvent struct {
	name string // "" means "message"
	data []byte // in a buffer of its own; lines are joined by '\n'
	over bool   // larger than the limit: data holds its first bytes only
}

// eventReader parses a text/event-stream (WHATWG HTML, "Server-sent events").
// An event that the end of the stream cuts short is dropped, as the standard
// says. It buffers no more than one line, and that up to the limit.
type eventReader struct {
	lastID string        // id of the newest complete event
	retry  time.Duration // asked for by the server, -1 if it did not

	src    io.Reader
	max    int
	pooled *[]byte
	buf    []byte
	r, w   int // unread: buf[r:w]
	skipLF bool
	begun  bool
	nextID string
}

var eventBuffers = sync.Pool{New: func() any { return new(make([]byte, 16<<10)) }}

// newEventReader reads events of up to limit bytes from src. The caller calls
// free when it is done.
func newEventReader(src io.Reader, limit int) *eventReader {
	pooled := eventBuffers.Get().(*[]byte)
	return &eventReader{src: src, max: limit, retry: -1, pooled: pooled, buf: *pooled}
}

// free gives the buffer back; no event refers to it.
func (e *eventReader) free() {
	if len(e.buf) <= 256<<10 {
		*e.pooled = e.buf
		eventBuffers.Put(e.pooled)
	}
	e.buf, e.pooled, e.r, e.w = nil, nil, 0, 0
}

// next returns the next event with data. Events without data only move lastID
// and retry. The error is that of the stream, io.EOF at its end.
func (e *eventReader) next() (sseEvent, error) {
	var ev sseEvent
	lines := 0
	for {
		line, cut, err := e.line()
		if err != nil {
			return sseEvent{}, err
		}
		if len(line) == 0 {
			e.lastID = e.nextID
			if len(ev.data) > 0 || ev.over {
				return ev, nil
			}
			ev, lines = sseEvent{}, 0
			continue
		}
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		if cut && string(key) != "data" {
			continue
		}
		switch string(key) {
		case "data":
			e.data(&ev, value, lines, cut)
			lines++
		case "event":
			ev.name = string(value)
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				e.nextID = string(value)
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				e.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// data adds one data line to ev, unless the event gets too large.
func (e *eventReader) data(ev *sseEvent, value []byte, lines int, cut bool) {
	if ev.over {
		return
	}
	all := value
	if lines > 0 {
		all = append(append(ev.data, '\n'), value...)
	}
	if ev.over = cut || len(all) > e.max; ev.over {
		all = all[:min(len(all), overHead)]
	}
	if lines == 0 || ev.over {
		all = bytes.Clone(all)
	}
	ev.data = all
}

// line returns the next line without its end, valid until the next call. Of a
// line over the limit it returns the first bytes and cut.
func (e *eventReader) line() (line []byte, cut bool, err error) {
	limit := e.max + len("data: ")
	var head []byte
	for seen := 0; ; {
		if e.skipLF && e.r < e.w {
			if e.buf[e.r] == '\n' {
				e.r++
			}
			e.skipLF = false
		}
		win := e.buf[e.r:e.w]
		end := lineEnd(win[seen:])
		text := win
		if end >= 0 {
			text = win[:seen+end]
		}
		if len(text) > limit && !cut {
			head, cut = bytes.Clone(text[:min(len(text), overHead)]), true
		}
		if end >= 0 {
			e.skipLF = win[len(text)] == '\r'
			e.r += len(text) + 1
			if cut {
				return head, true, nil
			}
			return e.first(text), false, nil
		}
		if seen = len(win); cut {
			e.r, e.w, seen = 0, 0, 0
		}
		if err := e.fill(); err != nil {
			return nil, false, err
		}
	}
}

// first strips the byte order mark that may open the stream.
func (e *eventReader) first(line []byte) []byte {
	if e.begun {
		return line
	}
	e.begun = true
	return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
}

// fill reads more bytes behind those that are unread.
func (e *eventReader) fill() error {
	if e.r == e.w {
		e.r, e.w = 0, 0
	}
	if e.w == len(e.buf) {
		if e.r > 0 {
			e.w = copy(e.buf, e.buf[e.r:e.w])
			e.r = 0
		} else {
			e.buf = append(e.buf, make([]byte, len(e.buf))...)
		}
	}
	for range 100 {
		n, err := e.src.Read(e.buf[e.w:])
		e.w += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// lineEnd finds the first CR or LF in b, -1 if there is none.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
