package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// script answers the round trips of a peer in a synctest bubble, one func
// each; the last one stays.
type script struct {
	t     *testing.T
	began time.Time

	mu    sync.Mutex
	steps []func(r *http.Request) (*http.Response, error)
	log   []string // "<time> <method> <Last-Event-ID>"
}

func (s *script) trips() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost {
		readMessage(s.t, r)
	}
	at := time.Since(s.began).Round(time.Millisecond)
	s.mu.Lock()
	s.log = append(s.log, strings.TrimSpace(fmt.Sprint(at, " ", r.Method, " ", r.Header.Get("Last-Event-ID"))))
	step := s.steps[0]
	if len(s.steps) > 1 {
		s.steps = s.steps[1:]
	}
	s.mu.Unlock()
	return step(r)
}

// says is a step: a stream with this text, which then ends.
func says(text string) func(*http.Request) (*http.Response, error) {
	return gives(200, eventsType, text)
}

func gives(status int, contentType, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {contentType}}
		return &http.Response{StatusCode: status, Header: h, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func breaks(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }

// holds is a step whose stream stays open after its text.
func holds(text string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		pr, pw := io.Pipe()
		context.AfterFunc(r.Context(), func() { pw.CloseWithError(r.Context().Err()) })
		resp, _ := says("")(r)
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(strings.NewReader(text), pr), pr}
		return resp, nil
	}
}

// tears is a step whose stream breaks off in the middle of an event.
func tears(r *http.Request) (*http.Response, error) {
	resp, err := says("")(r)
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("data: {"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	return resp, err
}

// played runs one peer over the steps in a bubble.
func played(t *testing.T, f func(t *testing.T, p Peer, o *owner, s *script), steps ...func(*http.Request) (*http.Response, error)) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, steps: steps, began: time.Now()}
		o := newOwner()
		p := DialHTTP(HTTPSpec{URL: "http://h/mcp", Transport: s}, Limits{}, o.events())
		f(t, p, o, s)
		p.Close(t.Context())
	})
}

const answerOf1 = "data: {\"jsonrpc\":\"2.0\",\"id\":\"a1\",\"result\":{}}\n\n"
const note = "data: {\"jsonrpc\":\"2.0\",\"method\":\"note\"}\n\n"

func TestResume(t *testing.T) {
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		send(t, p, sent(1, "tools/call"))
		o.answered(t, 1)
		if want := []string{"1 note", "1 note"}; !slices.Equal(o.messages, want) {
			t.Errorf("messages %q, want %q", o.messages, want)
		}
		// The server's retry is honoured, the POST not repeated, the id the newest.
		want := []string{"0s POST", "2s GET e2", "4s GET e3", "6s GET e3"}
		if trips := s.trips(); !slices.Equal(trips, want) {
			t.Errorf("round trips %q, want %q", trips, want)
		}
	},
		says("id: e1\nretry: 2000\ndata:\n\nid: e2\n"+note+"id: e9\ndata: cut"),
		says("id: e3\n"+note),
		says(""),
		says(answerOf1))
}

func TestResumeOfInitializeNamesTheSession(t *testing.T) {
	var session string
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		send(t, p, sent(1, "initialize"))
		o.answered(t, 1)
		if session != "s1" {
			t.Errorf("session %q in the resumption", session)
		}
	}, func(r *http.Request) (*http.Response, error) {
		resp, _ := says("id: 1\ndata:\n\n")(r)
		resp.Header.Set("Mcp-Session-Id", "s1")
		return resp, nil
	}, func(r *http.Request) (*http.Response, error) {
		session = r.Header.Get("Mcp-Session-Id")
		return says(answerOf1)(r)
	})
}

// When there is nothing to resume, the request is lost, soon, and not repeated.
func TestResumeGivesUp(t *testing.T) {
	primed := says("id: e1\ndata:\n\n")
	for name, c := range map[string]struct {
		steps []func(*http.Request) (*http.Response, error)
		trips int
		kind  ErrorKind
	}{
		"no event id":       {[]func(*http.Request) (*http.Response, error){says(note)}, 1, Lost},
		"server is gone":    {[]func(*http.Request) (*http.Response, error){primed, breaks}, 1 + resumeTries, Lost},
		"server is ill":     {[]func(*http.Request) (*http.Response, error){primed, gives(503, "text/plain", "")}, 1 + resumeTries, Lost},
		"not offered":       {[]func(*http.Request) (*http.Response, error){primed, gives(405, "text/plain", "")}, 2, Lost},
		"session is gone":   {[]func(*http.Request) (*http.Response, error){primed, gives(404, "text/plain", "")}, 2, Lost},
		"no stream":         {[]func(*http.Request) (*http.Response, error){primed, gives(200, "text/html", "")}, 2, Lost},
		"nothing new":       {[]func(*http.Request) (*http.Response, error){primed, says("")}, 1 + emptyPolls, Lost},
		"torn each time":    {[]func(*http.Request) (*http.Response, error){says("id: e1\nretry: 50\ndata:\n\n"), tears}, 1 + resumeTries, Lost},
		"malformed at last": {[]func(*http.Request) (*http.Response, error){primed, says("data: {\n\n")}, 2, Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(t *testing.T, p Peer, o *owner, s *script) {
				send(t, p, sent(1, "tools/call"))
				o.failed(t, 1, c.kind)
				if trips := s.trips(); len(trips) != c.trips || time.Since(s.began) > 10*time.Second {
					t.Errorf("round trips %q, want %d", trips, c.trips)
				}
			}, c.steps...)
		})
	}
	t.Run("modern", func(t *testing.T) {
		played(t, func(t *testing.T, p Peer, o *owner, s *script) {
			p.SetVersion(Modern)
			send(t, p, sent(1, "tools/call"))
			o.failed(t, 1, Lost)
			if trips := s.trips(); len(trips) != 1 {
				t.Errorf("round trips %q", trips)
			}
		}, primed)
	})
}

func TestCancelEndsResumption(t *testing.T) {
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		send(t, p, sent(1, "tools/call"))
		time.Sleep(time.Second)
		p.Cancel(1)
		time.Sleep(time.Hour)
		if trips := s.trips(); len(trips) != 1 || len(o.outcomes) != 0 {
			t.Errorf("round trips %q, outcomes %v", trips, o.outcomes)
		}
	}, says("id: 1\nretry: 60000\ndata:\n\n"))
}

func TestWatch(t *testing.T) {
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		p.SetVersion(Legacy)
		p.Ready()
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"0 note", "0 note", "0 note"}; !slices.Equal(o.messages, want) {
			t.Errorf("messages %q, want %q", o.messages, want)
		}
		want := []string{"0s GET", "3s GET e1", "6s GET e2"}
		if trips := s.trips(); !slices.Equal(trips, want) {
			t.Errorf("round trips %q, want %q", trips, want)
		}
	},
		says("retry: 3000\nid: e1\n"+note),
		says("id: e2\n"+note+"data: broken\n\nevent: other\n"+note),
		holds(note))
}

// A response of a broken POST stream may come on the GET stream.
func TestWatchAnswers(t *testing.T) {
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		send(t, p, sent(1, "tools/call"))
		synctest.Wait()
		p.Ready()
		o.answered(t, 1)
		synctest.Wait()
		if len(o.outcomes[1]) != 1 {
			t.Errorf("outcomes %v", o.outcomes)
		}
	}, holds(note), holds(answerOf1+answerOf1+"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"))
}

func TestWatchStopsWhereThereIsNone(t *testing.T) {
	for _, c := range []struct {
		status int
		kind   string
	}{{405, ""}, {404, ""}, {400, ""}, {401, ""}, {501, ""}, {200, "text/html"}} {
		played(t, func(t *testing.T, p Peer, o *owner, s *script) {
			p.Ready()
			time.Sleep(time.Hour)
			if trips := s.trips(); len(trips) != 1 || len(o.closed) != 0 {
				t.Errorf("%d: round trips %q", c.status, trips)
			}
		}, gives(c.status, c.kind, ""))
	}
}

// A server that goes away while nobody calls it shows on the GET stream alone.
func TestWatchTellsTrouble(t *testing.T) {
	type steps = []func(*http.Request) (*http.Response, error)
	open := says(note)
	for name, c := range map[string]struct {
		steps steps
		want  string
	}{
		"refused":             {steps{open, breaks, open, holds("")}, "unexpected EOF"},
		"refused at first":    {steps{breaks, holds("")}, "unexpected EOF"},
		"no such session":     {steps{open, gives(404, "", "")}, "HTTP status 404 Not Found"},
		"gateway":             {steps{open, gives(502, "", ""), holds("")}, "HTTP status 502 Bad Gateway"},
		"ends and comes back": {steps{open, open, holds("")}, ""},
		"has never had one":   {steps{gives(500, "", ""), gives(405, "", "")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			played(t, func(t *testing.T, p Peer, o *owner, s *script) {
				p.Ready()
				time.Sleep(time.Minute)
				synctest.Wait()
				got := ""
				if err := errors.Join(o.troubles...); err != nil {
					got = err.Error()
				}
				if !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
					t.Errorf("told %q, want %q", got, c.want)
				}
			}, c.steps...)
		})
	}
}

// An unreachable server is tried less and less, at least every 38 seconds.
func TestWatchBacksOff(t *testing.T) {
	for name, step := range map[string]func(*http.Request) (*http.Response, error){
		"gone": breaks, "ill": gives(500, "", ""), "ends at once": says(""),
	} {
		played(t, func(t *testing.T, p Peer, o *owner, s *script) {
			p.Ready()
			time.Sleep(time.Hour)
			if n := len(s.trips()); n < 3600/38 || n > 3600/30+8 {
				t.Errorf("%s: %d tries in an hour", name, n)
			}
			if len(o.closed) != 0 {
				t.Error("Closed was called")
			}
		}, step)
	}
}

// A second handshake moves the GET stream to the new session.
func TestReadyTwice(t *testing.T) {
	noLeaks(t)
	var open, opened atomic.Int32
	p, _ := dialServer(t, func(w http.ResponseWriter, r *http.Request) {
		opened.Add(1)
		open.Add(1)
		defer open.Add(-1)
		eventStream(w)
		<-r.Context().Done()
	})
	reaches := func(v *atomic.Int32, n int32) {
		t.Helper()
		for range 2000 {
			if v.Load() == n {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%d, want %d", v.Load(), n)
	}
	p.Ready()
	reaches(&opened, 1)
	p.Ready()
	reaches(&opened, 2)
	reaches(&open, 1)
	p.Close(t.Context())
	reaches(&open, 0)
}

// A stream that stays open after its answer does not hold up Close or leak.
func TestTailIsBounded(t *testing.T) {
	played(t, func(t *testing.T, p Peer, o *owner, s *script) {
		send(t, p, sent(1, "tools/call"))
		o.answered(t, 1)
		time.Sleep(tailWait + time.Millisecond)
		synctest.Wait()
		if len(o.messages) != 0 {
			t.Errorf("messages after the answer: %q", o.messages)
		}
	}, holds(answerOf1+note))
}
