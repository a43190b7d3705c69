// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package flight

// hashStack returns a hash of the return addresses on this goroutine's stack,
// maxFrames of them at most. It follows the frame pointers that the compiler
// keeps on these processors, and leaves the chain where it does not rise within
// the stack. Assembly is not preempted, so the stack does not move meanwhile.
//
//go:noescape
func hashStack() uint64
