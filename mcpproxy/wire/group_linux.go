package wire

import "syscall"

// groupAttr asks for an own process group, and that the kernel kills the
// child when we die in whatever way.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
