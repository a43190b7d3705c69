// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package rows

import "unsafe"

func prefetch(at *unsafe.Pointer, n, bytes int) {}
