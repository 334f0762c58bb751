package wire

import "syscall"

func writeFD(fd uintptr, p []byte) (int, error) { return syscall.Write(syscall.Handle(fd), p) }
