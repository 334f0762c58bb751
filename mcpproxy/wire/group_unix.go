//go:build unix && !linux

package wire

import "syscall"

// groupAttr asks for an own process group.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
