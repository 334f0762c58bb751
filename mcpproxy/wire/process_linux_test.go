package wire

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func init() {
	if os.Getenv(childEnv+"_PARENT") == "" {
		return
	}
	// Starts a server of its own from a thread that ends, and prints its pid.
	self, _ := os.Executable()
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		p, err := StartProcess(ProcessSpec{Command: self, Env: childEnviron("deaf")}, Limits{}, Events{})
		if err != nil {
			panic(err)
		}
		go func() {
			time.Sleep(300 * time.Millisecond)
			fmt.Println(p.Stats().Pid)
		}()
	}()
	time.Sleep(time.Minute)
	os.Exit(0)
}

// A child must outlive the thread that asked for it, and die with us even
// when we are killed.
func TestProcessDiesWithUs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = []string{childEnv + "_PARENT=1"}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = parent.Process.Kill()
	_ = parent.Wait()
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid == 0 {
		t.Fatalf("the child of the child is not alive: %q", line)
	}
	waitGone(t, pid)
}
