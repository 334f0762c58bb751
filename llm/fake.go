package llm

import (
	"context"
	"net/http"
	"sync"
	"time"
)

var _ Provider = (*Fake)(nil)

// Fake is a [Provider] that answers from a script. It is meant for tests; its
// zero value answers "ok".
type Fake struct {
	About Info // what Info returns; API is "fake" if it is empty

	mu       sync.Mutex
	steps    []Step
	answer   func(n int, r *Request) Step
	requests []*Request
	running  int
	most     int
}

// Step is how a [Fake] answers one request: with an error if there is an Err
// or a Status of 400 and more, after a stream's Chunks if there are any; else with
// Response, or one made of Text.
type Step struct {
	Delay    time.Duration // before anything
	Hang     bool          // until the caller leaves
	Text     string        // "" with nothing else is "ok"
	Chunks   []string      // the text in the pieces in which it is streamed
	Pause    time.Duration // before each of them
	Response *Response
	Status   int
	Header   http.Header
	Body     string
	Err      error
}

// NewFake returns a Fake that goes through the steps, and then repeats the last.
func NewFake(name string, steps ...Step) *Fake {
	return &Fake{About: Info{Name: name, Model: name + "-model"}, steps: steps}
}

// Script has the fake ask fn how to answer its nth request, from 1.
func (f *Fake) Script(fn func(n int, r *Request) Step) *Fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = fn
	return f
}

// Calls returns how many requests have reached the fake.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

// Requests returns the requests that have reached the fake, in order.
func (f *Fake) Requests() []*Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*Request(nil), f.requests...)
}

// Running returns how many requests the fake holds now, and held at most.
func (f *Fake) Running() (now, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running, f.most
}

// Info implements [Provider].
func (f *Fake) Info() Info {
	i := f.About
	if i.API == "" {
		i.API = "fake"
	}
	return i
}

// Generate implements [Provider].
func (f *Fake) Generate(ctx context.Context, r *Request, emit func(string)) (*Response, error) {
	s := f.begin(r)
	defer f.end()
	if s.Hang {
		<-ctx.Done()
		return nil, TransportError(ctx.Err())
	}
	if err := sleep(ctx, s.Delay); err != nil {
		return nil, err
	}
	for _, c := range s.Chunks {
		if err := sleep(ctx, s.Pause); err != nil {
			return nil, err
		}
		s.Text += c
		if emit != nil {
			emit(c)
		}
	}
	if s.Err != nil {
		return nil, s.Err
	}
	if s.Status >= 400 {
		return nil, HTTPError(s.Status, s.Header, []byte(s.Body))
	}
	if len(s.Chunks) == 0 && emit != nil {
		emit(s.text())
	}
	return s.response(), nil
}

func (f *Fake) begin(r *Request) Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
	f.running++
	f.most = max(f.most, f.running)
	switch n := len(f.requests); {
	case f.answer != nil:
		return f.answer(n, r)
	case len(f.steps) > 0:
		return f.steps[min(n, len(f.steps))-1]
	}
	return Step{}
}

func (f *Fake) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
}

func (s Step) text() string {
	switch {
	case s.Response != nil:
		return s.Response.Text
	case s.Text == "":
		return "ok"
	}
	return s.Text
}

func (s Step) response() *Response {
	if s.Response != nil {
		return s.Response
	}
	return &Response{Text: s.text(), FinishReason: FinishStop, Status: http.StatusOK, Header: s.Header}
}

// sleep waits for d; an early end of ctx is an error as of a broken connection.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return TransportError(ctx.Err())
	}
}
