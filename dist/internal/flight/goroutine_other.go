// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package flight

// goroutine would tell the running goroutine from others; here nothing does,
// so it is as if several made calls.
func goroutine() uintptr { return several }
