//go:build !unix

package wire

import (
	"os/exec"
	"syscall"
)

func groupAttr() *syscall.SysProcAttr { return nil }

// killGroup ends the process itself: there are no groups here.
func killGroup(cmd *exec.Cmd, _ syscall.Signal) { _ = cmd.Process.Kill() }
