package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"go.uber.org/goleak"

	"github.com/agentarmor/agentarmor/fixtures/fakellm"
)

// models is a config with a chain of two fakes and a server that is down. keys are further ones of llm.
func models(t *testing.T, gemini, groq *fakellm.Server, keys string) string {
	t.Helper()
	one, two := httptest.NewServer(gemini), httptest.NewServer(groq)
	t.Cleanup(one.Close)
	t.Cleanup(two.Close)
	file := filepath.Join(t.TempDir(), "c.yaml")
	write(t, file, fmt.Sprintf(`
catalog_cache: false
mcpServers: {gone: {command: /nonexistent/server}}
llm:
  %s
  chain:
    - {name: first, provider: gemini, model: gemini-2.5-flash, base_url: %q, api_key: hunter2}
    - {name: second, provider: openai, model: llama, base_url: "%s/openai/v1", api_key: hunter2}
`, keys, one.URL, two.URL))
	return file
}

// A call of the tool goes through the chain of the file, and what happens to it
// is told everywhere: in the log, the status and the metrics, but no key is.
func TestModels(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("", func(t *testing.T) {
		gemini := fakellm.NewGemini(fakellm.Options{Key: "hunter2", Reply: fakellm.Reply{Status: 503}})
		groq := fakellm.NewOpenAI(fakellm.Options{Key: "hunter2", Reply: fakellm.Reply{Text: "Rayleigh."}})
		log, url := serveHTTP(t, models(t, gemini, groq, "breaker: {failures: 1}"))
		c := must(connect(t.Context(), url, "", "t"))
		defer c.Close()
		awaitDown(t, c, "gone")

		res, err := c.CallTool(t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{
			Name: "llm_complete", Arguments: map[string]any{"prompt": "Why is the sky blue?"}}})
		if err != nil || res.IsError {
			t.Fatalf("%+v, %v", res, err)
		}
		told := string(must(json.Marshal(res.StructuredContent)))
		for _, want := range []string{`"text":"Rayleigh."`, `"provider":"second"`, `"class":"overloaded"`} {
			if !strings.Contains(told, want) {
				t.Errorf("no %s in %s", want, told)
			}
		}
		log.waitFor(t, `"provider":"first"`)
		if asked := groq.Requests(); len(asked) != 1 || !bytes.Contains(asked[0].Body, []byte("gone")) {
			t.Errorf("the model does not know what is down: %+v", asked)
		}

		var out bytes.Buffer
		if err := run(t.Context(), []string{"status", "--url", url}, mapEnv(nil), nil, &out, io.Discard); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"llm.complete: 1 of 2 models can be asked, by priority; 1 failover in the last hour", "\nfirst     down   open", "\nsecond    ready  closed"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
		page := must(http.Get(strings.TrimSuffix(url, "/mcp") + "/metrics"))
		metrics := string(must(io.ReadAll(page.Body)))
		page.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		for _, want := range []string{`agentarmor_llm_requests_total{injected="false",outcome="overloaded",provider="first"} 1`, `agentarmor_llm_failovers_total{from="first",injected="false",to="second"} 1`} {
			if !strings.Contains(metrics, want) {
				t.Errorf("no %s in\n%s", want, metrics)
			}
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if all := log.text.String() + out.String() + told + metrics; strings.Contains(all, "hunter2") {
			t.Errorf("the key is told:\n%s", all)
		}
	})
}

// awaitDown waits until the endpoint knows that a server does not work.
func awaitDown(t *testing.T, c *client.Client, name string) {
	t.Helper()
	for range 3000 {
		doc := must(readDocument(must(statusResource(t.Context(), c))))
		if doc.Upstreams[name].State == "down" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s is not down", name)
}

// With the key off, the model is told nothing of servers.
func TestModelsWithoutToolStatus(t *testing.T) {
	gemini, groq := fakellm.NewGemini(fakellm.Options{}), fakellm.NewOpenAI(fakellm.Options{})
	_, url := serveHTTP(t, models(t, gemini, groq, "tool_status_in_system_prompt: false"))
	c := must(connect(t.Context(), url, "", "t"))
	defer c.Close()
	awaitDown(t, c, "gone")
	if _, err := c.CallTool(t.Context(), mcp.CallToolRequest{Params: mcp.CallToolParams{
		Name: "llm_complete", Arguments: map[string]any{"prompt": "Why?"}}}); err != nil {
		t.Fatal(err)
	}
	if asked := gemini.Requests(); len(asked) != 1 || bytes.Contains(asked[0].Body, []byte("gone")) {
		t.Errorf("%+v", asked)
	}
}
