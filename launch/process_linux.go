// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"os"
)

// stateOf says why a process may not answer: ": its process is stopped".
func stateOf(pid int) string {
	switch stateLetter(pid) {
	case 0:
		return ": its process has ended"
	case 'T', 't':
		return ": its process is stopped"
	case 'Z', 'X':
		return ": its process has ended"
	case 'D':
		return ": its process waits in the kernel"
	}
	return ": it has not called dist.Init, or it keeps no flight recorder, as PyTorch's ranks"
}

// isStopped reports whether a process has been stopped, as by SIGSTOP.
func isStopped(pid int) bool { return stateLetter(pid) == 'T' }

// stateLetter is a process's state as the kernel writes it, 0 if there is none.
func stateLetter(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The state follows the name, which is in parentheses and may hold some.
	rest := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}
