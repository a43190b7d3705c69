// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"os"
)

// stateOf says why a process may not answer: ": its process is stopped".
func stateOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ": its process has ended"
	}
	// The state follows the name, which is in parentheses and may hold some.
	rest := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(rest) == 0 {
		return ""
	}
	switch rest[0] {
	case 'T', 't':
		return ": its process is stopped"
	case 'Z', 'X':
		return ": its process has ended"
	case 'D':
		return ": its process waits in the kernel"
	}
	return ": it has not called dist.Init, or the program is not Cohort's"
}
