// SPDX-License-Identifier: Apache-2.0

package train

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machineMemory is how many bytes of memory the processes of this machine, or of its
// container, can have together; 0 where nobody says.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	text, err := os.ReadFile("/sys/fs/cgroup/memory.max") // "max" where there is no limit
	if most, no := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && no == nil {
		total = min(total, most)
	}
	return total
}
