// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func hold(syscall.Signal)    {}
func release(syscall.Signal) {}

// stopSelf stops this process, if its parent is a shell that may continue it: in another
// process group of the same session.
func stopSelf(syscall.Signal) {
	parent := os.Getppid()
	session, err := unix.Getsid(parent)
	mine, err2 := unix.Getsid(0)
	group, err3 := unix.Getpgid(parent)
	if err == nil && err2 == nil && err3 == nil && session == mine && group != unix.Getpgrp() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
}
