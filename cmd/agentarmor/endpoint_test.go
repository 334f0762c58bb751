package main

import (
	"context"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentarmor/agentarmor/mcpproxy/builtin"
)

// readsKey is the script's count of how often its endpoint was read, an *atomic.Int64.
type readsKey struct{}

// scriptEndpoint is the script command "endpoint files...": until the script ends there
// is an endpoint at $URL whose status is the first file, at the next
// reading the second one, and so on; the last one stays.
func scriptEndpoint(ts *testscript.TestScript, _ bool, files []string) {
	if len(files) == 0 {
		ts.Fatalf("usage: endpoint file...")
	}
	var docs []string
	for _, file := range files {
		docs = append(docs, ts.ReadFile(file))
	}
	reads := ts.Value(readsKey{}).(*atomic.Int64)
	reads.Store(0)
	s := mcpserver.NewMCPServer("fake", "1", mcpserver.WithResourceCapabilities(true, false))
	s.AddResource(mcp.NewResource(builtin.StatusURI, "status"), func(context.Context, mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		n := int(reads.Add(1))
		return []mcp.ResourceContents{mcp.TextResourceContents{URI: builtin.StatusURI, Text: docs[min(n, len(docs))-1]}}, nil
	})
	web := httptest.NewServer(mcpserver.NewStreamableHTTPServer(s))
	ts.Defer(web.Close)
	ts.Setenv("URL", web.URL+"/mcp")
}

// scriptReads is the script command "reads n": it waits for that reading.
func scriptReads(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: reads n")
	}
	want, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	for range 3000 {
		if ts.Value(readsKey{}).(*atomic.Int64).Load() >= want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("the endpoint was not read %d times", want)
}
