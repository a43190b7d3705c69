// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package native

// sharedMemory reports whether ranks of several processes can share memory
// here: there is no memory file and no futex to do it with, so that
// processes talk over TCP.
const sharedMemory = false

func newProcessParking(int) parking {
	panic("native: no shared memory between processes on this system")
}
