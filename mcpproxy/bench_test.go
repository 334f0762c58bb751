package mcpproxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// echoEnv makes the test binary an MCP server that echoes, the cheapest there
// can be, or with the value hang one that answers no call, with cut one whose
// answers to calls end in their midst.
const echoEnv = "AGENTARMOR_TEST_ECHO"

func init() {
	if os.Getenv(echoEnv) != "" {
		echoServer(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// echoServer answers tools/call with the bytes of its text argument.
func echoServer(in io.Reader, out io.Writer) {
	r := bufio.NewReaderSize(in, 256<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		_, id, ok := bytes.Cut(line, []byte(`"id":`))
		if !ok {
			continue
		}
		id = id[:bytes.IndexAny(id, ",}")]
		result := []byte(`{}`)
		switch {
		case bytes.Contains(line[:min(len(line), 80)], []byte(`"initialize"`)):
			result = []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}`)
		case bytes.Contains(line[:min(len(line), 80)], []byte(`"tools/list"`)):
			result = []byte(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`)
		case bytes.Contains(line[:min(len(line), 80)], []byte(`"tools/call"`)) && os.Getenv(echoEnv) == "hang":
			continue
		case bytes.Contains(line[:min(len(line), 80)], []byte(`"tools/call"`)):
			text := line[bytes.Index(line, []byte(`"text":`))+7:]
			end := bytes.IndexByte(text[1:], '"') + 2
			result = append(append([]byte(`{"content":[{"type":"text","text":`), text[:end]...), `}]}`...)
		}
		answer := append(append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), `,"result":`...), result...)
		answer = append(answer, '}')
		if os.Getenv(echoEnv) == "cut" && bytes.Contains(line[:min(len(line), 80)], []byte(`"tools/call"`)) {
			answer = answer[:len(answer)*7/10]
		}
		if _, err := out.Write(append(answer, '\n')); err != nil {
			return
		}
	}
}

// roundTrips calls echo through w and r, b.N times.
func roundTrips(b *testing.B, w io.Writer, r io.Reader, tool string, size int) {
	in := bufio.NewReaderSize(r, 256<<10)
	ask := func(line string) {
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			b.Fatal(err)
		}
	}
	answer := func() []byte {
		line, err := in.ReadSlice('\n')
		for err == bufio.ErrBufferFull {
			line, err = in.ReadSlice('\n')
		}
		if err != nil {
			b.Fatal(err)
		}
		return line
	}
	ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	answer()
	ask(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{"text":"warm"}}}`, tool))
	if line := answer(); !bytes.Contains(line, []byte(`"warm"`)) {
		b.Fatalf("the first call is answered with %s", line)
	}
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":{"text":"%s"}}}`, tool, strings.Repeat("x", size))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		ask(call)
		for line := answer(); bytes.Contains(line[:min(80, len(line))], []byte("list_changed")); line = answer() {
		}
	}
}

// BenchmarkStdio measures one call through the endpoint against the same call
// straight to the server: both hops are pipes, the server a process.
func BenchmarkStdio(b *testing.B) {
	for _, size := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("direct/%dB", size), func(b *testing.B) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), echoEnv+"=1")
			w, _ := cmd.StdinPipe()
			r, _ := cmd.StdoutPipe()
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { w.Close(); _ = cmd.Wait() }()
			roundTrips(b, w, r, "echo", size)
		})
		b.Run(fmt.Sprintf("agentarmor/%dB", size), func(b *testing.B) {
			p, err := New(Config{OneClient: true, Upstreams: []UpstreamConfig{{
				Name: "up", Command: os.Args[0], Env: map[string]string{echoEnv: "1"}, Protocol: "legacy",
			}}})
			if err != nil {
				b.Fatal(err)
			}
			p.Start(context.Background())
			defer p.Close(context.Background())
			inR, inW, _ := os.Pipe()
			outR, outW, _ := os.Pipe()
			served := make(chan error, 1)
			go func() { served <- p.ServeStdio(context.Background(), inR, outW) }()
			roundTrips(b, inW, outR, "up__echo", size)
			inW.Close()
			<-served
		})
	}
}

// BenchmarkHTTP measures one call over streamable HTTP to a server on stdio,
// against a handler that answers at once: what HTTP itself costs.
func BenchmarkHTTP(b *testing.B) {
	call := []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"up__echo","arguments":{"text":"` + strings.Repeat("x", 100) + `"}}}`)
	post := func(b *testing.B, url, session string, body []byte) (string, []byte) {
		req, _ := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode/100 != 2 {
			b.Fatalf("%s %v: %s", resp.Status, err, answer)
		}
		return resp.Header.Get("Mcp-Session-Id"), answer
	}
	b.Run("bare", func(b *testing.B) {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
		}))
		defer srv.Close()
		for b.Loop() {
			post(b, srv.URL, "", call)
		}
	})
	b.Run("agentarmor", func(b *testing.B) {
		p, err := New(Config{Upstreams: []UpstreamConfig{{
			Name: "up", Command: os.Args[0], Env: map[string]string{echoEnv: "1"}, Protocol: "legacy",
		}}})
		if err != nil {
			b.Fatal(err)
		}
		p.Start(context.Background())
		defer p.Close(context.Background())
		srv := httptest.NewServer(p.HTTP(HTTPOptions{Loopback: true}))
		defer srv.Close()
		session, _ := post(b, srv.URL+"/mcp", "", []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`))
		if _, answer := post(b, srv.URL+"/mcp", session, call); !bytes.Contains(answer, []byte("xxx")) {
			b.Fatalf("the first call is answered with %s", answer)
		}
		for b.Loop() {
			post(b, srv.URL+"/mcp", session, call)
		}
	})
}
