package wire

import (
	"context"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// rounds is how often a caller of Send writes what others have queued
// meanwhile before it leaves the rest to the writer's goroutine.
const rounds = 4

// LineWriter writes messages as lines, in the order of Send's callers, who may
// be many and never wait.
//
// A lone message to a pipe is written by its caller with one system call. What
// a full pipe does not take, and bursts, are queued and written by one
// goroutine, many lines at a time. Close ends it.
type LineWriter struct {
	w        io.Writer
	conn     syscall.RawConn // of a pollable file, else nil: then only the goroutine writes
	maxLines int
	maxBytes int
	failed   func(error) // called once, at the first write error

	mu      sync.Mutex
	queue   [][]byte
	lines   int // queued or being written
	bytes   int
	writing bool // somebody owns batch
	handed  bool // the owner has left batch to the goroutine
	err     error
	closed  bool
	idle    []chan struct{} // closed when nothing is left to write

	batch lineBatch

	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

// NewLineWriter returns a writer to w. l bounds the queue: l.Queue messages
// and, so that a queue of large messages is bounded too, four times l.Message
// bytes. failed, if not nil, hears of the first write error.
func NewLineWriter(w io.Writer, l Limits, failed func(error)) *LineWriter {
	l = l.Filled()
	lw := &LineWriter{
		w: w, maxLines: l.Queue, maxBytes: 4 * l.Message, failed: failed,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if f, ok := w.(*os.File); ok && pollable(f) {
		lw.conn, _ = f.SyscallConn()
	}
	lw.batch.init()
	go lw.run()
	return lw
}

// pollable tells whether reads and writes of f wait without a thread.
func pollable(f *os.File) bool { return f.SetDeadline(time.Time{}) == nil }

// Send writes or queues raw, a message without line breaks, and takes
// ownership of it. more tells that another follows at once. The error is ErrFull
// when too much is queued and ErrGone after a write error or Close; raw
// was not written then, not even in part.
func (w *LineWriter) Send(raw []byte, more bool) error {
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return ErrGone
	}
	if w.lines >= w.maxLines || w.lines > 0 && w.bytes+len(raw) > w.maxBytes {
		w.mu.Unlock()
		return ErrFull
	}
	w.queue = append(w.queue, raw)
	w.lines++
	w.bytes += len(raw)
	if w.writing { // whoever writes takes it along
		w.mu.Unlock()
		return nil
	}
	if more || w.conn == nil {
		w.mu.Unlock()
		w.signal()
		return nil
	}
	w.writing = true
	alone := w.lines == 1
	w.mu.Unlock()
	if written, err := w.pump(false); err != nil && alone && written == 0 {
		return ErrGone
	}
	return nil
}

func (w *LineWriter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run is the goroutine that writes what callers have left.
func (w *LineWriter) run() {
	defer OnPanic()
	defer close(w.done)
	for {
		select {
		case <-w.wake:
		case <-w.stop:
			return
		}
		w.mu.Lock()
		mine := w.handed || !w.writing
		w.writing, w.handed = w.writing || mine, false
		w.mu.Unlock()
		if mine {
			w.pump(true)
		}
	}
}

// pump writes the queue; the caller has set writing. With wait it goes on
// until nothing is left, else until the file takes no more, or its rounds are
// over, and leaves the rest to the goroutine.
func (w *LineWriter) pump(wait bool) (written int, err error) {
	for round := 0; ; round++ {
		if !w.refill() {
			return written, nil
		}
		if !wait && round == rounds {
			break
		}
		n, err := w.write(wait)
		lines, bytes := w.batch.advance(n)
		written += n
		w.mu.Lock()
		w.lines -= lines
		w.bytes -= bytes
		w.mu.Unlock()
		if err != nil {
			w.fail(err)
			return written, err
		}
		if !wait && !w.batch.empty() {
			break
		}
	}
	w.mu.Lock()
	w.handed = true
	w.mu.Unlock()
	w.signal()
	return written, nil
}

// refill moves the queue to the batch; false means that nothing is left, and
// that the caller no longer owns the batch.
func (w *LineWriter) refill() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.batch.empty() && len(w.queue) == 0 {
		w.writing = false
		w.wakeIdleLocked()
		return false
	}
	if w.batch.empty() {
		w.queue = w.batch.swap(w.queue)
	}
	return true
}

// write writes a part of the batch and returns the number of bytes.
func (w *LineWriter) write(wait bool) (int, error) {
	if w.conn != nil {
		return w.batch.writeTo(w.conn, wait)
	}
	return w.w.Write(w.batch.join())
}

func (w *LineWriter) fail(err error) {
	w.mu.Lock()
	first := w.err == nil
	if first {
		w.err = err
	}
	w.queue, w.lines, w.bytes, w.writing = nil, 0, 0, false
	w.wakeIdleLocked()
	w.mu.Unlock()
	if first && w.failed != nil {
		w.failed(err)
	}
}

func (w *LineWriter) wakeIdleLocked() {
	for _, c := range w.idle {
		close(c)
	}
	w.idle = nil
}

// Flush waits until everything sent so far is written, the file fails or ctx ends.
func (w *LineWriter) Flush(ctx context.Context) {
	w.mu.Lock()
	if w.err != nil || w.lines == 0 && !w.writing {
		w.mu.Unlock()
		return
	}
	c := make(chan struct{})
	w.idle = append(w.idle, c)
	w.mu.Unlock()
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// Close flushes until ctx ends and stops the writer; it does not close the
// file. It may be called twice. A write to something else than a pollable file
// cannot be interrupted: Close leaves it behind.
func (w *LineWriter) Close(ctx context.Context) {
	w.Flush(ctx)
	w.mu.Lock()
	if !w.closed {
		w.closed, w.err = true, os.ErrClosed
		close(w.stop)
	}
	w.wakeIdleLocked()
	w.mu.Unlock()
	if f, ok := w.w.(*os.File); ok && w.conn != nil {
		_ = f.SetWriteDeadline(time.Unix(1, 0))
		<-w.done
		return
	}
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}
