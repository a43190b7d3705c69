// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package launch

import (
	"os"
	"syscall"
)

// silenceOf cannot say here why a process does not answer.
func silenceOf(int) string { return "" }

// isStopped cannot tell here whether a process has been stopped.
func isStopped(int) bool { return false }

// workerAttr makes a worker the leader of its own session. There is no parent-death signal
// here: the guard (guard.go) kills the workers of an agent that has been killed.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func selfPath() (string, error) { return os.Executable() }

// ticksOf cannot tell here.
func ticksOf(int) uint64 { return 0 }
