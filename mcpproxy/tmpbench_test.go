package mcpproxy
import ("testing";"fmt";"strings";"time";"github.com/agentarmor/agentarmor/mcpproxy/wire";"context")
func BenchmarkOpenMany(b *testing.B) {
	p, err := New(Config{})
	if err != nil { b.Fatal(err) }
	p.dial = func(*UpstreamConfig) func(context.Context, string, wire.Events) (wire.Peer, error) {
		s := newScripted()
		var list []string
		for i := range 1000 { list = append(list, fmt.Sprintf(`{"name":"t%d","inputSchema":{"type":"object"}}`, i)) }
		s.result("tools/list", `{"tools":[`+strings.Join(list, ",")+`]}`)
		return s.dial
	}
	var ups []UpstreamConfig
	for i := range 5 { ups = append(ups, UpstreamConfig{Name: fmt.Sprintf("fake%d", i), Command: "fake", Protocol: "legacy"}) }
	if err := p.Reload(Config{Upstreams: ups}); err != nil { b.Fatal(err) }
	p.Start(b.Context())
	b.Cleanup(func() { p.Close(context.Background()) })
	for _, up := range p.ups() { for up.source().list == nil { time.Sleep(time.Millisecond) } }
	time.Sleep(200*time.Millisecond)
	up := p.upstream("fake0")
	up.guard.tool("t1").breaker.Trip()
	s := wire.NewSession("http", func([]byte, bool) error { return nil })
	m, _ := wire.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fake0__t1","arguments":{}}}`))
	st := &answering{}
	b.ReportAllocs()
	for b.Loop() { p.Handle(s, m, st) }
}
