//go:build unix && !linux

package wire

import "syscall"

func writeFD(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
