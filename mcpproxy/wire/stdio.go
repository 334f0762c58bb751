package wire

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ServeStdio serves one client over in and out until in ends, then waits until
// every request it has read is answered, and returns nil; at the end of ctx, or
// when out fails or its reader is gone, it returns at once. An error is one of
// reading. Standard streams should come from [Pollable].
func ServeStdio(ctx context.Context, in io.Reader, out io.Writer, h Handler, l Limits) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l = l.Filled()
	c := &stdioConn{h: h, idle: make(chan struct{})}
	c.w = NewLineWriter(out, l, func(error) { cancel() })
	c.session = NewSession("stdio", c.w.Send)
	c.underWay.Store(1) // the reader itself
	read := make(chan error, 1)
	go func() { read <- c.read(NewLineReader(in, l.Message)) }()
	var err error
	select {
	case err = <-read:
		if e, ok := h.(InputEnder); ok {
			e.InputEnded(c.session)
		}
	case <-ctx.Done():
		c.over.Store(true)
		if f, ok := in.(*os.File); ok && f.SetReadDeadline(time.Unix(1, 0)) == nil {
			<-read
		} // else the read cannot be interrupted and is left behind
	}
	c.awaitAnswers(ctx, out)
	c.w.Close(ctx)
	h.Closed(c.session)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// stdioConn is the one client of ServeStdio.
type stdioConn struct {
	h        Handler
	w        *LineWriter
	session  *Session
	underWay atomic.Int64 // requests without an answer, and the reader
	idle     chan struct{}
	over     atomic.Bool // nothing more is handled
}

// awaitAnswers waits until all requests read are answered, nobody is left to
// read the answers, or ctx ends.
func (c *stdioConn) awaitAnswers(ctx context.Context, out io.Writer) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-c.idle:
			return
		case <-ctx.Done():
			return
		case <-look.C:
			if f, ok := out.(*os.File); ok && hungUp(f) {
				return
			}
		}
	}
}

func (c *stdioConn) finished() {
	if c.underWay.Add(-1) == 0 {
		close(c.idle)
	}
}

func (c *stdioConn) read(r *LineReader) error {
	defer OnPanic()
	defer c.finished()
	for {
		line, more, err := r.Next()
		if c.over.Load() {
			return nil
		}
		if long, ok := errors.AsType[*TooLong](err); ok {
			c.refuse(long.parseError())
			continue
		}
		if err != nil {
			return err
		}
		m, err := Parse(line)
		if pe, ok := errors.AsType[*ParseError](err); ok {
			c.refuse(pe)
			continue
		}
		m.More = more
		if !m.IsRequest() {
			c.h.Handle(c.session, m, nil)
			continue
		}
		c.underWay.Add(1)
		c.h.Handle(c.session, m, &stdioStream{c: c})
	}
}

// refuse answers what is no message.
func (c *stdioConn) refuse(e *ParseError) {
	if !e.Quiet {
		_ = c.w.Send(AppendError(nil, e.ID, e.Code, e.Msg, nil), false)
	}
}

// parseError is the refusal of a line over the limit, with what its head tells.
func (e *TooLong) parseError() *ParseError {
	m, err := Parse(e.Head)
	pe, ok := errors.AsType[*ParseError](err)
	if !ok { // a limit below the size of the head
		pe = &ParseError{ID: m.ID, Quiet: !m.IsRequest(), request: !m.IsResponse()}
	}
	pe.Code, pe.Msg = CodeInvalidRequest, "Invalid Request: the message is over the size limit"
	return pe
}

// stdioStream is the stream of one request: the session's own, until it ends.
type stdioStream struct {
	c    *stdioConn
	mu   sync.Mutex // also orders Send and Answer
	over bool
}

var _ Stream = (*stdioStream)(nil)

func (s *stdioStream) Send(raw []byte, more bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrGone
	}
	return s.c.w.Send(raw, more)
}

func (s *stdioStream) Answer(raw []byte, more bool) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over = true
		err = s.c.w.Send(raw, more)
		s.c.finished()
	}
	return err
}

func (s *stdioStream) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over = true
		s.c.finished()
	}
}

func (s *stdioStream) OnLeave(func()) {}
