// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "syscall"

// toBackground gives this process the lowest priority.
func toBackground() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19) }
