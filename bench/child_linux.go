package main

import (
	"os/exec"
	"syscall"
)

// bindLife makes the kernel kill cmd when this process is killed.
func bindLife(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
