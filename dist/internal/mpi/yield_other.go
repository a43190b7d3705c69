// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mpi

import "runtime"

// yield lets others have the processor.
func yield() { runtime.Gosched() }
