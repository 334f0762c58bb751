package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agentarmor/agentarmor/chaos"
	"github.com/agentarmor/agentarmor/fixtures/badserver"
	"github.com/agentarmor/agentarmor/llm"
	"github.com/agentarmor/agentarmor/mcpproxy/wire"
)

// crashServer is the name of the MCP server of the crash test.
const crashServer = "tools"

// crashModels are its models; the naive lane knows the first one only.
var crashModels = []string{"gemini", "groq"}

// crashWorld is what one lane lives in: an MCP server on a loopback port and
// models, which meet faults. Its server does the work of the steps for real:
// each execution leaves a line in a file.
type crashWorld struct {
	faults decider
	pace   pace
	folder string
	server *httptest.Server
	tools  *badserver.Server

	mu       sync.Mutex
	began    time.Time      // zero: no fault is met yet
	attempts map[string]int // by target and step
	hits     []time.Duration
}

func newCrashWorld(faults decider, p pace) (*crashWorld, error) {
	folder, err := os.MkdirTemp("", "agentarmor-crashtest-")
	if err != nil {
		return nil, err
	}
	w := &crashWorld{faults: faults, pace: p, folder: folder, attempts: map[string]int{}, tools: badserver.New(badserver.Options{JSON: true})}
	w.server = httptest.NewServer(http.HandlerFunc(w.serve))
	return w, nil
}

// begin has faults met from now on.
func (w *crashWorld) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
}

func (w *crashWorld) close() {
	w.faults.close() // lets go what it holds
	w.server.CloseClientConnections()
	w.tools.Close()
	w.server.Close()
	_ = os.RemoveAll(w.folder)
}

func (w *crashWorld) url() string { return w.server.URL + "/mcp" }

// file is where the executions of a tool leave their lines.
func (w *crashWorld) file(tool string) string { return filepath.Join(w.folder, tool) }

// duplicates counts executions of what must not be executed twice.
func (w *crashWorld) duplicates() (n int) {
	b, _ := os.ReadFile(w.file(appendStep.tool())) // nothing was executed: there is no file
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if seen[line] {
			n++
		}
		seen[line] = true
	}
	return n
}

// meet decides about a call and counts it.
func (w *crashWorld) meet(c crashCall) chaos.Decision {
	w.mu.Lock()
	key := c.target + " " + c.step
	w.attempts[key]++
	c.attempt = w.attempts[key]
	begun := !w.began.IsZero()
	w.mu.Unlock()
	if !begun {
		return chaos.Decision{}
	}
	d := w.faults.decide(c)
	if d.Cause != nil {
		w.mu.Lock()
		w.hits = append(w.hits, time.Since(w.began))
		w.mu.Unlock()
	}
	return d
}

// metAt returns when faults were met, in order. Probes may go on meeting some.
func (w *crashWorld) metAt() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.hits))
}

// work is how long a step takes where it is done: the same in every attempt,
// 2 ms in the median, log-normal as services are.
func work(step string) time.Duration {
	h := fnv.New64a()
	_, _ = io.WriteString(h, step)
	return time.Duration(2 * math.Exp(0.5*rand.New(rand.NewPCG(1, h.Sum64())).NormFloat64()) * float64(time.Millisecond))
}

// serve is the MCP server. Calls of tools take their time and meet faults; other
// requests meet those that break the connection or answer for the server.
func (w *crashWorld) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	m, err := wire.Parse(body)
	if err != nil || m.ID == nil || m.Method == "" {
		w.tools.ServeHTTP(rw, r)
		return
	}
	call := callOf(m)
	d := w.meet(call)
	if d.Wait(r.Context()) != nil {
		return // who has left gets no work done
	}
	if call.op != chaos.ToolCall && d.Action == chaos.Pass {
		w.tools.ServeHTTP(rw, r)
		return
	}
	if insteadOfWork(rw, m.ID, &d) {
		return
	}
	time.Sleep(work(call.step))
	answer := httptest.NewRecorder()
	w.tools.ServeHTTP(answer, r)
	switch out := answer.Body.Bytes(); d.Action {
	case chaos.Break:
		panic(http.ErrAbortHandler)
	case chaos.Garble:
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(d.Change(out)) // the client may have left
	default:
		maps.Copy(rw.Header(), answer.Header())
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(out)
	}
}

// callOf is what a request of the protocol is to the faults.
func callOf(m wire.Message) crashCall {
	call := crashCall{target: chaos.Server(crashServer)}
	switch m.Method {
	case "tools/call":
		call.op = chaos.ToolCall
		call.tool, _ = wire.String(wire.Get(m.Params, "name"))
		call.step, _ = wire.String(wire.Get(wire.Get(m.Params, "arguments"), "text"))
	case "tools/list":
		call.op = chaos.ToolList
	}
	return call
}

// insteadOfWork applies what keeps a request from being executed, if d is that.
func insteadOfWork(rw http.ResponseWriter, id []byte, d *chaos.Decision) bool {
	switch d.Action {
	case chaos.Die, chaos.Refuse:
		panic(http.ErrAbortHandler) // the connection ends
	case chaos.Answer:
		if d.RetryAfter > 0 {
			rw.Header().Set("Retry-After", strconv.FormatFloat(d.RetryAfter.Seconds(), 'f', 3, 64))
		}
		http.Error(rw, d.Text, d.Status)
	case chaos.FailTool:
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}],"isError":true}}`, id, wire.AppendString(nil, d.Text))
	default:
		return false
	}
	return true
}

// crashModel is a model of the crash test. It answers with the step.
type crashModel struct {
	w    *crashWorld
	name string
}

var _ llm.Provider = (*crashModel)(nil)

// Info implements [llm.Provider].
func (m *crashModel) Info() llm.Info {
	return llm.Info{Name: m.name, API: "fake", Model: m.name + "-fake"}
}

// Generate implements [llm.Provider].
func (m *crashModel) Generate(ctx context.Context, r *llm.Request, _ func(string)) (*llm.Response, error) {
	step := r.Messages[len(r.Messages)-1].Text()
	d := m.w.meet(crashCall{target: chaos.Provider(m.name), step: step})
	if err := d.Wait(ctx); err != nil {
		return nil, llm.TransportError(err)
	}
	switch d.Action {
	case chaos.Die, chaos.Refuse:
		return nil, llm.TransportError(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	case chaos.Answer, chaos.FailTool:
		header := http.Header{}
		if d.RetryAfter > 0 {
			header.Set("Retry-After-Ms", strconv.FormatInt(d.RetryAfter.Milliseconds(), 10))
		}
		return nil, llm.HTTPError(max(d.Status, http.StatusBadRequest), header, []byte(`{"error":{"message":"injected"}}`))
	}
	select {
	case <-time.After(work(step)):
	case <-ctx.Done():
		return nil, llm.TransportError(ctx.Err())
	}
	switch d.Action {
	case chaos.Break:
		return nil, llm.TransportError(io.ErrUnexpectedEOF)
	case chaos.Garble, chaos.Transform:
		return nil, &llm.Error{Class: llm.ClassMalformed, Message: "not JSON", RetryAfter: -1}
	}
	return &llm.Response{Text: step, FinishReason: llm.FinishStop, Status: http.StatusOK}, nil
}
