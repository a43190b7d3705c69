// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lobby

import (
	"math"
	"syscall"
)

// descriptors returns how many descriptors this process may have.
func descriptors() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return usualDescriptors
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
