package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// afterExit is how long what a dead process has written is still read.
	afterExit = 100 * time.Millisecond
	// termWait is how long a process group may take to obey SIGTERM.
	termWait = 2 * time.Second
)

// ProcessSpec says how to start a server that speaks over stdio.
type ProcessSpec struct {
	Command string // looked up in the PATH of Env unless it holds a slash
	Args    []string
	Env     []string      // the complete environment, as key=value
	Dir     string        // "" for ours
	Grace   time.Duration // from the end of stdin to SIGTERM, default 2 s
}

// process is a server that runs as our child, in its own process group.
//
// Three goroutines serve it: the reader of stdout, which makes every call of
// Events; that of stderr; and the waiter, which sees the exit at once,
// whoever else holds the pipes open. Close waits for all of them.
type process struct {
	ev     Events
	grace  time.Duration
	cmd    *exec.Cmd
	in     *LineWriter
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	tail   stderrTail

	skipped atomic.Int64
	exited  chan struct{} // closed when the process is reaped
	wg      sync.WaitGroup

	mu      sync.Mutex
	pending map[uint64]struct{} // requests under way; nil when the process is gone
	closing bool
	why     string // of an end that we brought about
}

var _ Peer = (*process)(nil)

// StartProcess starts a server and returns its Peer. After Events.Closed
// nothing of it is left, with or without Close. The error is an *Error of
// kind NotSent.
func StartProcess(spec ProcessSpec, l Limits, ev Events) (Peer, error) {
	l = l.Filled()
	p := &process{ev: ev, grace: spec.Grace, exited: make(chan struct{}), pending: map[uint64]struct{}{}}
	if p.grace <= 0 {
		p.grace = 2 * time.Second
	}
	path, err := lookPath(spec)
	if err != nil {
		return nil, &Error{Kind: NotSent, Err: err}
	}
	p.cmd = &exec.Cmd{Path: path, Args: append([]string{spec.Command}, spec.Args...), Env: spec.Env, Dir: spec.Dir, SysProcAttr: groupAttr()}
	if spec.Env == nil {
		p.cmd.Env = []string{} // nil would be ours
	}
	if err := p.start(); err != nil {
		return nil, &Error{Kind: NotSent, Err: err}
	}
	p.in = NewLineWriter(p.stdin, l, func(error) { p.broken("closed its stdin") })
	p.wg.Go(p.wait)
	p.wg.Go(p.readStderr)
	p.wg.Go(func() { p.readStdout(NewLineReader(p.stdout, l.Message)) })
	return p, nil
}

// start makes the pipes and the child.
func (p *process) start() error {
	var files [6]*os.File
	for i := 0; i < len(files); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(files[:i])
			return err
		}
		files[i], files[i+1] = r, w
	}
	p.stdin, p.stdout, p.stderr = files[1], files[2], files[4]
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = files[0], files[3], files[5]
	for _, f := range []*os.File{p.stdin, p.stdout} {
		if conn, err := f.SyscallConn(); err == nil {
			setPipeSize(conn, pipeSize)
		}
	}
	if err := groups.start(p.cmd); err != nil {
		closeAll(files[:])
		return err
	}
	closeAll([]*os.File{files[0], files[3], files[5]})
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// lookPath finds the executable in the child's own PATH.
func lookPath(spec ProcessSpec) (string, error) {
	if filepath.Base(spec.Command) != spec.Command {
		return spec.Command, nil
	}
	for _, kv := range spec.Env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if path, err := exec.LookPath(filepath.Join(dir, spec.Command)); err == nil && filepath.IsAbs(path) {
				return path, nil
			}
		}
		return "", &exec.Error{Name: spec.Command, Err: exec.ErrNotFound}
	}
	return exec.LookPath(spec.Command)
}

// Send implements [Peer].
func (p *process) Send(o Outgoing) error {
	if o.ID != 0 {
		if err := p.track(o.ID); err != nil {
			return &Error{Kind: NotSent, Err: err}
		}
	}
	err := p.in.Send(o.Body, o.More)
	if err == nil || o.ID != 0 && !p.untrack(o.ID) {
		return nil // a request that is not tracked any more has failed by Events
	}
	if errors.Is(err, ErrFull) {
		return &Error{Kind: NotSent, Err: errors.New("the process does not read its stdin: the queue is full")}
	}
	return &Error{Kind: NotSent, Err: errors.New("the process has closed its stdin")}
}

func (p *process) track(id uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending == nil {
		return errors.New("the process is gone")
	}
	if _, ok := p.pending[id]; ok {
		return fmt.Errorf("request %d is under way already", id)
	}
	p.pending[id] = struct{}{}
	return nil
}

// untrack tells whether id was under way, and ends that.
func (p *process) untrack(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.pending[id]
	delete(p.pending, id)
	return ok
}

// Cancel implements [Peer].
func (p *process) Cancel(id uint64) { p.untrack(id) }

// SetVersion implements [Peer]; stdio has no headers.
func (p *process) SetVersion(string) {}

// Ready implements [Peer].
func (p *process) Ready() {}

// Stats implements [Peer].
func (p *process) Stats() PeerStats {
	pid := p.cmd.Process.Pid
	select {
	case <-p.exited:
		pid = 0
	default:
	}
	return PeerStats{Pid: pid, Stderr: p.tail.lines(), Skipped: int(p.skipped.Load())}
}

// readStdout delivers what the server says until it ends, then its end.
func (p *process) readStdout(r *LineReader) {
	defer OnPanic()
	for {
		line, more, err := r.Next()
		if long, ok := errors.AsType[*TooLong](err); ok {
			p.unreadable(long.parseError(), TooLarge)
			continue
		}
		if err != nil {
			break
		}
		m, err := Parse(line)
		if pe, ok := errors.AsType[*ParseError](err); ok {
			p.unreadable(pe, Malformed)
			continue
		}
		m.More = more
		p.deliver(m)
	}
	p.end()
}

func (p *process) deliver(m Message) {
	if !m.IsResponse() {
		p.ev.Message(m, 0)
		return
	}
	id, ok := ParseID(m.ID)
	if !ok {
		p.skipped.Add(1)
		return
	}
	if p.untrack(id) { // else it was cancelled
		p.ev.Answer(id, m)
	}
}

// unreadable handles a line that is no message: if it is, or was to be, the
// response to one of our requests, that one has failed.
func (p *process) unreadable(pe *ParseError, kind ErrorKind) {
	p.skipped.Add(1)
	if id, ok := ParseID(pe.ID); ok && !pe.request && p.untrack(id) {
		p.ev.Failed(id, &Error{Kind: kind, Err: fmt.Errorf("unreadable answer: %w", pe)})
	}
}

// end fails what is under way and reports the end.
func (p *process) end() {
	select {
	case <-p.exited:
	case <-time.After(afterExit):
		p.setWhy("closed its stdout")
	}
	p.mu.Lock()
	pending := p.pending
	p.pending = nil
	p.mu.Unlock()
	err := errors.New(p.reason())
	for id := range pending {
		p.ev.Failed(id, &Error{Kind: Lost, Err: err})
	}
	groups.kill(p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	p.in.Close(gone)
	_ = p.stdin.Close()
	_ = p.stdout.Close()
	p.mu.Lock()
	closing := p.closing
	p.mu.Unlock()
	if !closing {
		p.ev.Closed(err)
	}
}

// broken ends a process that has closed stdin, if it does not exit by itself
// right now, which says more.
func (p *process) broken(why string) {
	time.AfterFunc(afterExit, func() {
		defer OnPanic()
		select {
		case <-p.exited:
		default:
			p.setWhy(why)
			groups.kill(p.cmd.Process.Pid, syscall.SIGKILL)
		}
	})
}

func (p *process) setWhy(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == "" {
		p.why = why
	}
}

// reason says why the process is gone; it must be, or why must be set.
func (p *process) reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != "" {
		return p.why
	}
	return p.cmd.ProcessState.String()
}

// wait reaps the process, ends its group and lets the readers run dry.
func (p *process) wait() {
	defer OnPanic()
	_ = p.cmd.Wait()
	groups.finished(p.cmd.Process.Pid)
	close(p.exited)
	deadline := time.Now().Add(afterExit)
	_ = p.stdout.SetReadDeadline(deadline)
	_ = p.stderr.SetReadDeadline(deadline)
}

func (p *process) readStderr() {
	defer OnPanic()
	defer p.stderr.Close()
	buf := make([]byte, 4<<10)
	for {
		n, err := p.stderr.Read(buf)
		p.tail.add(buf[:n])
		if err != nil {
			return
		}
	}
}

// Close implements [Peer]: stdin ends, after the grace period the group gets
// SIGTERM, two seconds later, or as soon as ctx ends, SIGKILL.
func (p *process) Close(ctx context.Context) {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	pid := p.cmd.Process.Pid
	flush, cancel := context.WithTimeout(ctx, p.grace/4)
	p.in.Close(flush)
	cancel()
	_ = p.stdin.Close()
	if !p.exits(ctx, p.grace) {
		groups.kill(pid, syscall.SIGTERM)
		if !p.exits(ctx, termWait) {
			groups.kill(pid, syscall.SIGKILL)
		}
	}
	p.wg.Wait()
}

// Kill ends the whole group at once, as a crash would.
func (p *process) Kill() { groups.kill(p.cmd.Process.Pid, syscall.SIGKILL) }

// exits waits for the exit; after ctx it does not wait.
func (p *process) exits(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
