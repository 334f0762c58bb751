//go:build unix

package wire

import (
	"os/exec"
	"syscall"
)

// killGroup signals every process of the group that cmd leads.
func killGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }
