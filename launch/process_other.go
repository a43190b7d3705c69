// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

import (
	"os"
	"syscall"
)

// stateOf says why a process may not answer, where the system tells.
func stateOf(int) string { return "" }

// isStopped reports whether a process has been stopped; here it cannot tell.
func isStopped(int) bool { return false }

// workerAttr makes a worker the leader of a session of its own. There is no
// parent-death signal here: the guard (guard.go) ends the workers of a killed agent.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func selfPath() (string, error) { return os.Executable() }

// ticksOf is not known here.
func ticksOf(int) uint64 { return 0 }
