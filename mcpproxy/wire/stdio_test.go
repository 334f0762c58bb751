package wire

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// echoHandler answers every request with its params, some of them later.
type echoHandler struct {
	mu     sync.Mutex
	notes  []string
	closed int
	hold   chan struct{} // requests of method "held" wait for it
}

func (h *echoHandler) Handle(s *Session, m Message, st Stream) {
	switch {
	case !m.IsRequest():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.notes = append(h.notes, m.Method+string(m.Result))
	case m.Method == "held":
		go func() {
			<-h.hold
			_ = st.Answer(AppendResult(nil, m.ID, []byte(`"held"`)), false)
		}()
	case m.Method == "dropped":
		st.Drop()
		_ = st.Answer([]byte("never"), false)
	default:
		_ = st.Send(AppendNotification(nil, "notifications/progress", nil), true)
		_ = st.Answer(AppendResult(nil, m.ID, []byte(`{}`)), m.More)
		_ = st.Answer([]byte("twice"), false)
	}
}

func (h *echoHandler) Closed(*Session) { h.closed++ }

const progress = `{"jsonrpc":"2.0","method":"notifications/progress"}`

func TestServeStdio(t *testing.T) {
	defer goleak.VerifyNone(t)
	refused := func(id, code int, msg string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":%d,"message":%q}}`, id, code, msg)
	}
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"a"}`,
		``, "Content-Length: 12\r", "\r",
		`{"jsonrpc":"2.0","method":"note"}`,
		`{"jsonrpc":"2.0","id":4,"result":5}`,
		`{"jsonrpc":"2.0","id":2,"method":"dropped"}`,
		`{"jsonrpc":"2.0","id":3,"method":"x","params":4}`,
		`{"jsonrpc":"2.0","id":4,"result":4,"error":{}}`, // a broken response: no reply
		`{"jsonrpc":"2.0","method":"x","params":4}`,      // a broken notification: no reply
		`nonsense`,
		`{"jsonrpc":"2.0","id":6,"method":"` + strings.Repeat("x", 1000) + `"}`,
		`{"jsonrpc":"2.0","id":7,"result":"` + strings.Repeat("x", 1000) + `"}`,
		"{\"jsonrpc\":\"2.0\",\r\"id\":8,\"method\":\"last\"}",
	}, "\n")
	r, w := newPipe(t)
	h := &echoHandler{}
	if err := ServeStdio(t.Context(), strings.NewReader(in), w, h, Limits{Message: 1000}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out, _ := io.ReadAll(r)
	want := []string{
		progress, `{"jsonrpc":"2.0","id":1,"result":{}}`,
		refused(3, CodeInvalidRequest, "Invalid Request: params must be an object"),
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error: expected a value at byte 0"}}`,
		refused(6, CodeInvalidRequest, "Invalid Request: the message is over the size limit"),
		progress, `{"jsonrpc":"2.0","id":8,"result":{}}`, "",
	}
	if d := cmp.Diff(want, strings.Split(string(out), "\n")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"note", "5"}, h.notes); d != "" {
		t.Error(d)
	}
	if h.closed != 1 {
		t.Errorf("closed %d times", h.closed)
	}
}

// Answers to what was read before the end of stdin are still written.
func TestServeStdioAnswersAfterEOF(t *testing.T) {
	defer goleak.VerifyNone(t)
	inR, inW := newPipe(t)
	outR, outW := newPipe(t)
	h := &echoHandler{hold: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- ServeStdio(t.Context(), inR, outW, h, Limits{}) }()
	fmt.Fprintln(inW, `{"jsonrpc":"2.0","id":1,"method":"held"}`)
	inW.Close()
	select {
	case <-served:
		t.Fatal("it did not wait for the answer")
	case <-time.After(50 * time.Millisecond):
	}
	close(h.hold)
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	outW.Close()
	if out, _ := io.ReadAll(outR); string(out) != `{"jsonrpc":"2.0","id":1,"result":"held"}`+"\n" {
		t.Errorf("got %s", out)
	}
}

func TestServeStdioEndsWithContextOrClient(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, how := range []string{"context", "client"} {
		t.Run(how, func(t *testing.T) {
			inR, inW := newPipe(t)
			outR, outW := newPipe(t)
			h := &echoHandler{hold: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			served := make(chan error, 1)
			go func() { served <- ServeStdio(ctx, inR, outW, h, Limits{}) }()
			fmt.Fprintln(inW, `{"jsonrpc":"2.0","id":1,"method":"held"}`)
			if how == "context" {
				cancel()
			} else {
				outR.Close()
				fmt.Fprintln(inW, `{"jsonrpc":"2.0","id":2,"method":"a"}`)
			}
			if err := <-served; err != nil || h.closed != 1 {
				t.Error(err, h.closed)
			}
			close(h.hold)
		})
	}
}
