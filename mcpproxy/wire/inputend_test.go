package wire

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// lateAnswerer answers nothing before the client's input has ended.
type lateAnswerer struct {
	mu      sync.Mutex
	waiting []Stream
	ended   int
}

var (
	_ Handler    = (*lateAnswerer)(nil)
	_ InputEnder = (*lateAnswerer)(nil)
)

func (h *lateAnswerer) Handle(_ *Session, _ Message, st Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = append(h.waiting, st)
}

func (h *lateAnswerer) InputEnded(*Session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended++
	for _, st := range h.waiting {
		_ = st.Answer(AppendResult(nil, []byte("1"), []byte("{}")), false)
		if st.Send(AppendNotification(nil, "late", nil), false) == nil {
			h.ended = -100
		}
	}
}

func (h *lateAnswerer) Closed(*Session) {}

// A stream that lasts as long as its client, such as subscriptions/listen, must
// not keep the endpoint up when the input has ended; and nothing follows an answer.
func TestStdioTellsTheEndOfInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &lateAnswerer{}
		var out bytes.Buffer
		in := io.MultiReader(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}` + "\n"))
		if err := ServeStdio(t.Context(), in, &out, h, Limits{}); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); h.ended != 1 || got != `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n" {
			t.Errorf("ended %d times, out %s", h.ended, got)
		}
	})
}
