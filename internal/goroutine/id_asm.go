// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package goroutine

// ID returns a number that tells the running goroutine from all others that there are. A later
// goroutine may have the number of one that has ended.
func ID() uintptr
