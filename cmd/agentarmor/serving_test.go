package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptServing is the script command "serving args...": until the script
// ends "agentarmor serve" with those flags is at $URL, with its tools listed.
func scriptServing(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "agentarmor", append([]string{"serve", "--transport", "http", "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(cmd.Dir, "xdg"), "XDG_STATE_HOME="+filepath.Join(cmd.Dir, "state"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	log, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		cancel()
		_ = cmd.Wait() // a signal is how it ends
	})
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if m := regexp.MustCompile(`"url":"(http[^"]*)"`).FindStringSubmatch(lines.Text()); m != nil {
			ts.Setenv("URL", m[1])
			go func() { _, _ = io.Copy(io.Discard, log) }()
			c, err := connect(ctx, m[1], "", "test")
			ts.Check(err)
			defer c.Close()
			ts.Check(awaitTool(ctx, c, "one__add"))
			return
		}
	}
	ts.Fatalf("it does not listen")
}
