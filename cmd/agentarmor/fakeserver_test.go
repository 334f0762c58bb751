package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// fakeServer is an MCP server of 2025-11-25 on stdio with the tools named in
// its arguments. The argument "exit" makes it leave before it answers;
// FAKE_PID names a file for its process id.
func fakeServer() {
	if len(os.Args) > 1 && os.Args[1] == "exit" {
		fmt.Fprintln(os.Stderr, "SECRET_FILE is missing")
		os.Exit(3)
	}
	if file := os.Getenv("FAKE_PID"); file != "" {
		_ = os.WriteFile(file+"~", []byte(strconv.Itoa(os.Getpid())), 0o600)
		_ = os.Rename(file+"~", file)
	}
	var tools []string
	for _, name := range os.Args[1:] {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"description":"d","inputSchema":{"type":"object"}}`, name))
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		reply := fmt.Sprintf(`"error":{"code":-32601,"message":"no %s"}`, m.Method)
		switch m.Method {
		case "initialize":
			reply = `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1.2.3"}}`
		case "tools/list":
			reply = `"result":{"tools":[` + strings.Join(tools, ",") + `]}`
		case "ping":
			reply = `"result":{}`
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,%s}`+"\n", m.ID, reply)
	}
}
