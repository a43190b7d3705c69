// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps signals of the terminal from a process.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
