// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package flight

// goroutine returns a number that tells the running goroutine from all others
// that there are.
func goroutine() uintptr
