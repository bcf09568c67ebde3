package main

import (
	"os/exec"
	"syscall"
)

// bindLife has the kernel end cmd when this process is killed.
func bindLife(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
