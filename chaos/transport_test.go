package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// ask makes a request through the faults of llm/x to a server that answers
// with a body. It returns status and body, or the error of either.
func ask(i *Injector, body string) (string, error) {
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}, nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "POST", "http://host/", strings.NewReader("question"))
	resp, err := i.Transport("llm/x", base).RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"), " ", string(b)), err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Each fault of a provider is what its failure is on the wire.
func TestTransport(t *testing.T) {
	const body = `{"choices":[{"text":"hello, this is an answer"}],"id":7}`
	for _, c := range []struct {
		spec  Spec
		want  string // beginning of what is read
		err   error  // of errors.Is
		op    string // of the *net.OpError
		takes time.Duration
	}{
		{spec: Spec{Fault: Kill}, err: syscall.ECONNREFUSED, op: "dial"},
		{spec: Spec{Fault: Flap}, err: syscall.ECONNREFUSED, op: "dial"},
		{spec: Spec{Fault: Error, Status: 529}, want: `529  {"error":{"code":529,"message":"HTTP status 529"}}`},
		{spec: Spec{Fault: RateLimit, RetryAfter: Duration(1500 * time.Millisecond)}, want: `429 2 {"error":`},
		{spec: Spec{Fault: ToolError}, want: `400  {"error":{"code":"tool_use_failed"`},
		{spec: Spec{Fault: Latency, Delay: Duration(3 * time.Second)}, want: "200  " + body, takes: 3 * time.Second},
		{spec: Spec{Fault: Hang}, want: "200  " + body, takes: time.Minute}, // the end of the fault
		{spec: Spec{Fault: Drop}, want: `200  {"choices":`, err: syscall.ECONNRESET, op: "read"},
		{spec: Spec{Fault: Truncate}, want: `200  {"choices":[{"text":"hello`},
		{spec: Spec{Fault: Corrupt}, want: `200  `},
		{spec: Spec{Fault: SchemaDrift}, want: `200  {"choices_v2":[{"text":"hello, this is an answer"}],"id_v2":7}`},
	} {
		t.Run(string(c.spec.Fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.spec.Target = "llm/x"
				i := on(t, c.spec)
				defer i.Close()
				began := time.Now()
				got, err := ask(i, body)
				if !errors.Is(err, c.err) || !strings.HasPrefix(got, c.want) || time.Since(began) != c.takes {
					t.Errorf("%q, %v after %v", got, err, time.Since(began))
				}
				if c.err != nil {
					op, _ := errors.AsType[*net.OpError](err)
					by, _ := errors.AsType[*Injected](err)
					if op == nil || op.Op != c.op || by == nil || by.ID != "f1" || by.Fault != c.spec.Fault {
						t.Errorf("%#v", err)
					}
				}
				switch c.spec.Fault {
				case Truncate:
					if len(got) >= len(body)+5 {
						t.Errorf("whole: %s", got)
					}
				case Corrupt:
					if !strings.Contains(got, "\x00") || len(got) != len(body)+5 {
						t.Errorf("%q", got)
					}
				}
				i.Clear("all")
				if got, err := ask(i, body); got != "200  "+body || err != nil {
					t.Errorf("after the end: %q, %v", got, err)
				}
			})
		})
	}
}

// A caller who leaves ends the wait, and the error says whose work it was.
func TestTransportIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := on(t, Spec{Target: "llm/x", Fault: Hang, TTL: 10 * minute})
		defer i.Close()
		_, err := ask(i, "")
		by, ok := errors.AsType[*Injected](err)
		if !ok || by.Fault != Hang || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// Every event of a stream drifts.
func TestStreamsDrift(t *testing.T) {
	change := byEvent(&http.Response{Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}}, renamed)
	got := string(change([]byte("data: {\"a\":1}\n\n: comment\ndata:{\"b\":2}\n\ndata: [DONE]\n\n")))
	if want := "data: {\"a_v2\":1}\n\n: comment\ndata: {\"b_v2\":2}\n\ndata: [DONE]\n\n"; got != want {
		t.Errorf("%q", got)
	}
}

// A long answer that is cut ends there, and one that is garbage goes on.
func TestLongAnswers(t *testing.T) {
	body := `{"text":"` + strings.Repeat("x", 20<<10) + `"}`
	for fault, whole := range map[Kind]bool{Truncate: false, Corrupt: true, SchemaDrift: true} {
		got, err := ask(on(t, Spec{Target: "llm/x", Fault: fault}), body)
		if err != nil || strings.HasSuffix(got, `"}`) != whole {
			t.Errorf("%s: %d of %d bytes, %v", fault, len(got), len(body), err)
		}
	}
}

type idler struct {
	roundTripper
	closed bool
}

func (i *idler) CloseIdleConnections() { i.closed = true }

// A provider that is closed lets go of its connections.
func TestIdleConnectionsAreClosed(t *testing.T) {
	base := &idler{}
	on(t).Transport("llm/x", base).(interface{ CloseIdleConnections() }).CloseIdleConnections()
	if !base.closed {
		t.Error("they stay")
	}
}
