package chaos

import (
	"context"
	"strings"
	"time"
)

// Op is what a call to a server is about.
type Op int

// The operations that faults tell apart. Those to a provider are all Request.
const (
	Request  Op = iota // any other request
	ToolCall           // tools/call
	ToolList           // tools/list
	Connect            // a process is started, a connection is made
)

// Call is one request that is about to be sent.
type Call struct {
	Context context.Context // of the request, for those who watch; may be nil
	Target  string          // llm/<entry> or mcp/<upstream>
	Op      Op
	Tool    string // with ToolCall: by the name that the server gave it
}

func (c Call) provider() bool { return strings.HasPrefix(c.Target, "llm/") }

// full is the target with the tool.
func (c Call) full() string {
	if c.Op == ToolCall {
		return c.Target + "/" + c.Tool
	}
	return c.Target
}

// Action is what becomes of a call, after its delay.
type Action int

// The actions of faults. A seam does what comes nearest in its protocol.
const (
	Pass      Action = iota
	Hold             // nothing is sent until the fault ends
	Die              // the server ends; a process of ours really does
	Refuse           // the server is not there: no connection, no process
	Answer           // nothing is sent; the answer is Status, RetryAfter and Text
	FailTool         // nothing is sent; the tool says that it failed: Text
	Break            // it is sent, and the connection breaks before the whole answer is there
	Garble           // it is sent; Change makes the bytes of the answer unreadable
	Transform        // it is sent; Change makes another answer of the result, which is JSON
)

// Decision is what to do with one call. The zero value lets it pass.
type Decision struct {
	Action     Action
	Status     int           // HTTP status
	RetryAfter time.Duration // whole seconds, as in the header; 0: the answer names none
	Text       string
	Change     func(b []byte) []byte
	Cause      *Injected // the fault that acts, nil if none does

	delays []delay
	ended  <-chan struct{} // closed at the end of a fault that holds the call
}

type delay struct {
	wait  time.Duration
	ended <-chan struct{} // cuts it short
}

// Wait returns when the call may go on, or with the cause of ctx when that
// ends first. The end of a fault ends what it makes calls wait for.
func (d *Decision) Wait(ctx context.Context) error {
	for _, delay := range d.delays {
		timer := time.NewTimer(delay.wait)
		select {
		case <-timer.C:
		case <-delay.ended:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if d.Action != Hold {
		return nil
	}
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// add joins what a further fault does to the call; it tells whether no other
// fault can do anything any more.
func (d *Decision) add(next Decision, f *fault) (last bool) {
	cause := &Injected{ID: f.id, Fault: f.spec.Fault}
	for _, wait := range next.delays {
		d.delays = append(d.delays, delay{wait.wait, f.ended})
	}
	if next.Action == Pass {
		if d.Cause == nil {
			d.Cause = cause
		}
		return false
	}
	delays := d.delays
	*d = next
	d.delays, d.ended, d.Cause = delays, f.ended, cause
	if part := d.RetryAfter % time.Second; part > 0 {
		d.RetryAfter += time.Second - part
	}
	return true
}

// Injected marks a failure as one that chaos made. It reads as the failure.
type Injected struct {
	ID    string // of the fault
	Fault Kind
	Err   error // the failure as a real one would be; nil in a Decision
}

// Error is the text of the failure.
func (e *Injected) Error() string {
	if e.Err == nil {
		return string(e.Fault)
	}
	return e.Err.Error()
}

// Unwrap returns the failure.
func (e *Injected) Unwrap() error { return e.Err }

// Wrap returns err marked as made by the fault.
func (e *Injected) Wrap(err error) error { return &Injected{ID: e.ID, Fault: e.Fault, Err: err} }
