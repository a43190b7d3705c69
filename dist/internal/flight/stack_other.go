// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package flight

import "runtime"

// hashStack returns a hash of the return addresses on this goroutine's stack,
// maxFrames of them at most.
func hashStack() uint64 {
	var pcs [maxFrames]uintptr
	h := uint64(0x9e3779b97f4a7c15)
	for _, pc := range pcs[:runtime.Callers(2, pcs[:])] {
		h = (h ^ uint64(pc)) * 0x9e3779b97f4a7c15
	}
	return h
}
