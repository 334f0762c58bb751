package mcpproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentarmor/agentarmor/mcpproxy/event"
)

// slack is a receiver of webhooks that answers as told.
type slack struct {
	mu     sync.Mutex
	got    []string
	answer func(n int, w http.ResponseWriter)
	taken  chan string
}

func newSlack(t *testing.T, answer func(n int, w http.ResponseWriter)) (*slack, string) {
	s := &slack{answer: answer, taken: make(chan string, 100)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		s.mu.Lock()
		s.got = append(s.got, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
		n := len(s.got)
		s.mu.Unlock()
		if s.answer != nil {
			s.answer(n, w)
		}
		s.taken <- body.String()
	}))
	t.Cleanup(srv.Close)
	return s, srv.URL + "/services/T0KEN"
}

// next is the next body that arrived.
func (s *slack) next(t *testing.T) string {
	t.Helper()
	select {
	case b := <-s.taken:
		return b
	case <-time.After(20 * time.Second):
		t.Fatal("nothing has arrived")
		return ""
	}
}

// started is an endpoint without upstreams, and its log.
func started(t *testing.T, cfg Config) (*Proxy, *lockedBuffer) {
	t.Helper()
	log := &lockedBuffer{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Start(t.Context())
	t.Cleanup(func() { p.Close(t.Context()) })
	return p, log
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await waits for a line in the log.
func (l *lockedBuffer) await(t *testing.T, part string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(l.String(), part); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q in %s", part, l.String())
		}
	}
}

func opened(provider string) event.Event {
	return event.Event{Kind: event.LLMBreaker, Provider: provider, From: "closed", To: "open"}
}

// A webhook gets the alert with a text that Slack shows and takes for no
// mention; a failure of the receiver is tried again.
func TestWebhook(t *testing.T) {
	s, url := newSlack(t, func(n int, w http.ResponseWriter) {
		if n == 1 {
			w.WriteHeader(503)
		}
	})
	p, log := started(t, Config{Alerts: AlertConfig{Webhook: url}})
	p.publishAs(opened("<!channel> & co"), slog.LevelInfo, "x")
	first, again := s.next(t), s.next(t)
	if first != again {
		t.Errorf("tried again with another body: %s, %s", first, again)
	}
	var got webhookBody
	if err := json.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	if got.Text != "AgentArmor: the breaker of the provider &lt;!channel&gt; &amp; co has opened" || got.State != "raised" || got.Alert.Rule != "breaker_open" || got.Alert.Provider != "<!channel> & co" {
		t.Errorf("got %+v", got)
	}
	if s.got[0] != "POST /services/T0KEN application/json" {
		t.Error(s.got[0])
	}
	if strings.Contains(log.String(), "T0KEN") {
		t.Error("the address is in the log")
	}
	p.alerts.hook.send(Alert{Text: "a\nAgentArmor: resolved: b"})
	wantPart(t, s.next(t), `{"text":"AgentArmor: a AgentArmor: resolved: b",`)
}

// What the receiver refuses for good is said once, without the address.
func TestWebhookRefuses(t *testing.T) {
	s, url := newSlack(t, func(_ int, w http.ResponseWriter) {
		w.Header().Set("Location", "https://elsewhere.example/T0KEN")
		w.WriteHeader(302)
	})
	p, log := started(t, Config{Alerts: AlertConfig{Webhook: url}})
	p.publishAs(opened("gemini"), slog.LevelInfo, "x")
	s.next(t)
	log.await(t, `msg="an alert was not taken by the webhook" reason="HTTP status 302"`)
	if strings.Contains(log.String(), "T0KEN") {
		t.Error("the address is in the log")
	}
}

// A receiver that hangs holds up nobody, and Close does not wait for it.
func TestWebhookNeverBlocks(t *testing.T) {
	release := make(chan struct{})
	_, url := newSlack(t, func(int, http.ResponseWriter) { <-release })
	defer close(release)
	p, log := started(t, Config{Alerts: AlertConfig{Webhook: url}})
	began := time.Now()
	for i := range 3 * webhookQueue {
		p.alerts.hook.send(Alert{Text: fmt.Sprint(i)})
	}
	p.Close(t.Context())
	if took := time.Since(began); took > webhookTimeout/2 {
		t.Errorf("took %v", took)
	}
	wantPart(t, log.String(), `msg="an alert was not sent to the webhook"`, `reason="too many wait"`)
}

// Nobody listens: five attempts, and what the log says is not the address.
func TestWebhookIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWebhook("http://hooks.example/T0KEN", slog.New(slog.NewTextHandler(&log, nil)))
		attempts := 0
		w.client.Transport = tripper(func(*http.Request) (*http.Response, error) {
			attempts++
			return nil, errors.New("refused")
		})
		if err := w.deliver(t.Context(), nil); err == nil || strings.Contains(err.Error(), "T0KEN") || attempts != webhookAttempts {
			t.Errorf("%v after %d attempts", err, attempts)
		}
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The receiver says when to come again; what is injected on purpose says so.
func TestWebhookWaitsAsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWebhook("http://hooks.example/T0KEN", slog.New(slog.DiscardHandler))
		began := time.Now()
		var at []time.Duration
		w.client.Transport = tripper(func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(began))
			h := http.Header{"Retry-After": {"30"}}
			if len(at) == 2 {
				h.Set("Retry-After", "86400")
			}
			return &http.Response{StatusCode: []int{429, 503, 200}[len(at)-1], Header: h, Body: http.NoBody}, nil
		})
		w.send(Alert{Text: "x", Injected: "f1"})
		body := <-w.queue
		if !strings.HasPrefix(string(body), `{"text":"AgentArmor: injected by chaos: x","state":"raised","alert":{"rule":"","text":"x",`) {
			t.Errorf("%s", body)
		}
		if err := w.deliver(t.Context(), body); err != nil {
			t.Error(err)
		}
		if want := []time.Duration{0, 30 * time.Second, 90 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("tried at %v", at)
		}
	})
}

// However long the receiver wants to be left alone, it is tried again.
func TestWebhookCapsTheWait(t *testing.T) {
	for asked, want := range map[string]time.Duration{
		"99999999999999999999": webhookMax, "9223372036854775807": webhookMax, "10000000000": webhookMax, "7": 7 * time.Second, "-5": 0, "soon": 0, "": 0,
	} {
		w := newWebhook("http://hooks.example/T0KEN", slog.New(slog.DiscardHandler))
		w.client.Transport = tripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {asked}}, Body: http.NoBody}, nil
		})
		if wait, err := w.post(t.Context(), nil); wait != want || err == nil {
			t.Errorf("%q: %v, %v", asked, wait, err)
		}
	}
}

// Whatever a receiver does instead of an answer, neither the address nor what
// it has sent, which may repeat the address, is told.
func TestWebhookFailuresAreSecretFree(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { // answers with the request, which is no HTTP response
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			line := make([]byte, 4096)
			n, _ := conn.Read(line)
			_, _ = conn.Write(line[:n])
			_ = conn.Close()
		}
	})
	defer work.Wait()
	defer echo.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	for url, want := range map[string]string{
		"http://" + echo.Addr().String():        "no HTTP answer",
		secure.URL:                              "its certificate is not valid for it, or not trusted",
		"https://" + echo.Addr().String():       "no HTTP answer",
		"http://127.0.0.1:1":                    "connection refused",
		"http://user:T0KEN@127.0.0.1:1":         "connection refused",
		strings.Replace(secure.URL, "s", "", 1): "HTTP status 400",
	} {
		w := newWebhook(url+"/services/T0KEN?T0KEN", slog.New(slog.DiscardHandler))
		_, err := w.post(t.Context(), []byte("{}"))
		w.client.CloseIdleConnections()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "T0KEN") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// What is not sent when the endpoint ends is said.
func TestWebhookEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lockedBuffer{}
		w := newWebhook("http://hooks.example/T0KEN", slog.New(slog.NewTextHandler(log, nil)))
		w.client.Transport = tripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		for range 3 {
			w.send(Alert{})
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		w.run(ctx)
		wantPart(t, log.String(), `msg="an alert was not taken by the webhook" reason="the endpoint ends"`)
		if got := log.String(); strings.Count(got, "the endpoint ends") < 2 || strings.Contains(got, "T0KEN") {
			t.Error(got)
		}
	})
}

// A receiver that is silent is given up after a while.
func TestWebhookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWebhook("http://hooks.example/T0KEN", slog.New(slog.DiscardHandler))
		w.client.Transport = tripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		if _, err := w.post(t.Context(), nil); err == nil || err.Error() != "no answer within 10s" {
			t.Error(err)
		}
	})
}

// The name of the host can be the secret, too.
func TestUnknownHostIsNotNamed(t *testing.T) {
	err := unanswered(&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "t0ken.example.com", Server: "10.0.0.1:53"}})
	if err.Error() != "no such host" {
		t.Error(err)
	}
}
