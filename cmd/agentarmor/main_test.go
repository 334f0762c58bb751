package main

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentarmor/agentarmor/fixtures/badserver"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"agentarmor": main,
		"panicking":  panicking,
		"fakeserver": fakeServer,
		"badserver": func() {
			os.Exit(badserver.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"endpoint": scriptEndpoint, "reads": scriptReads, "serving": scriptServing},
		Setup: func(e *testscript.Env) error {
			// Nothing of the machine's own config may leak into a script.
			e.Setenv("XDG_CONFIG_HOME", e.WorkDir+"/xdg")
			e.Setenv("XDG_STATE_HOME", e.WorkDir+"/state")
			e.Values[readsKey{}] = new(atomic.Int64)
			return nil
		},
	})
}
