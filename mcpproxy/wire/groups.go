package wire

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// groups are the process groups that StartProcess has made and that are not
// yet reaped.
var groups = processGroups{live: map[int]*exec.Cmd{}}

// KillAll kills every process group that is still alive, for the ways out on
// which nothing can be closed: a second signal, a panic.
func KillAll() {
	groups.mu.Lock()
	defer groups.mu.Unlock()
	groups.kills++
	for _, cmd := range groups.live {
		killGroup(cmd, syscall.SIGKILL)
	}
}

// OnPanic, deferred at the top of a goroutine, kills every process group if
// the goroutine panics, and lets the panic go on.
func OnPanic() {
	if r := recover(); r != nil {
		KillAll()
		panic(r)
	}
}

type processGroups struct {
	mu    sync.Mutex
	live  map[int]*exec.Cmd // by the id of the leader
	kills int               // how often KillAll was called
	jobs  chan func()       // of the starting thread; nil when none is needed
	users int               // processes and starts under way
}

// start starts cmd from one thread that lives as long as any of its children:
// Linux kills a child with Pdeathsig when the thread that made it ends.
func (g *processGroups) start(cmd *exec.Cmd) error {
	g.mu.Lock()
	if g.users == 0 {
		g.jobs = make(chan func())
		go startingThread(g.jobs)
	}
	g.users++
	jobs, kills := g.jobs, g.kills
	g.mu.Unlock()

	done := make(chan error, 1)
	jobs <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		g.release()
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live[cmd.Process.Pid] = cmd
	if g.kills != kills { // KillAll came between
		killGroup(cmd, syscall.SIGKILL)
	}
	return nil
}

func startingThread(jobs <-chan func()) {
	defer OnPanic()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for job := range jobs {
		job()
	}
}

// release gives up the starting thread after the last process.
func (g *processGroups) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users--; g.users == 0 {
		close(g.jobs)
		g.jobs = nil
	}
}

// kill signals the group of pid unless it is reaped already.
func (g *processGroups) kill(pid int, sig syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cmd := g.live[pid]; cmd != nil {
		killGroup(cmd, sig)
	}
}

// finished is called when the leader is reaped; it kills the rest of the group.
func (g *processGroups) finished(pid int) {
	g.kill(pid, syscall.SIGKILL)
	g.mu.Lock()
	delete(g.live, pid)
	g.mu.Unlock()
	g.release()
}
