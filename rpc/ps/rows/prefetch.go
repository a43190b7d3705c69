// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package rows

import "unsafe"

// prefetch lets the processor fetch the first bytes of n places in memory, and does not wait
// for them. Places that are not mapped are left out.
//
//go:noescape
func prefetch(at *unsafe.Pointer, n, bytes int)
