//go:build linux

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"
)

var stormFor = flag.Duration("storm", 3*time.Second, "how long the servers are killed in TestEveryCallIsAnsweredOnce")

// Servers are killed at random while eight calls are always under way: each
// call gets one answer, neither none nor two.
func TestEveryCallIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	const servers, inFlight = 8, 8
	var ups, tools []string
	for i := range servers {
		ups = append(ups, up(fmt.Sprintf("s%d", i), atOnce))
		tools = append(tools, fmt.Sprintf("s%d__echo", i))
	}
	e := serveStdio(t, configFile(t, "", ups...))
	e.awaitTools(tools...)

	over := make(chan struct{})
	var killer sync.WaitGroup
	killed := 0
	killer.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(rand.N(300 * time.Millisecond)):
			}
			if all := descendants(e.cmd.Process.Pid); len(all) > 0 && syscall.Kill(all[rand.IntN(len(all))].pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	})

	pending := map[string]string{} // expected text by id
	outcomes := map[string]int{}
	calls := 0
	settle := func() {
		m := e.wait("answer", func(m *rpcMessage) bool { return m.Method == "" })
		want, ok := pending[string(m.ID)]
		if !ok {
			t.Fatalf("an answer that nobody waits for: %.300s", m.raw)
		}
		delete(pending, string(m.ID))
		r := e.result(m)
		switch {
		case !r.IsError && r.text() == want:
			outcomes["ok"]++
		case r.IsError && r.Meta.Call != nil:
			outcomes[r.Meta.Call.Outcome]++
		default:
			t.Errorf("call %q got %.300s", want, m.raw)
		}
	}
	for end := time.Now().Add(*stormFor); time.Now().Before(end); calls++ {
		text := fmt.Sprint("call ", calls)
		tool, args := "echo", fmt.Sprintf(`{"text":%q}`, text)
		if calls%3 == 0 {
			tool, args, text = "sleep", `{"ms":20}`, "slept"
		}
		id := e.start("tools/call", toolCall(fmt.Sprintf("s%d__%s", calls%servers, tool), args))
		pending[id] = text
		if len(pending) == inFlight {
			settle()
		}
	}
	close(over)
	killer.Wait()
	for len(pending) > 0 {
		settle()
	}
	t.Logf("%d calls, %d kills: %v", calls, killed, outcomes)
	if outcomes["ok"] == 0 || killed == 0 {
		t.Error("nothing was shown")
	}
	// A ping is answered after all that was written before it.
	if m := e.rpc("ping", `{}`); m.Error != nil {
		t.Errorf("ping: %s", m.raw)
	}
	if m, stray, _ := e.take(func(m *rpcMessage) bool { return m.Method == "" }); stray {
		t.Errorf("a second answer: %.300s", m.raw)
	}
}
