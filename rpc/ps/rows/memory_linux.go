// SPDX-License-Identifier: Apache-2.0

package rows

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages. It is advice only.
func adviseHuge(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
