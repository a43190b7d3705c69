// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"os"
	"strconv"
)

// procState is what the system shows of a process of this host.
type procState struct {
	state byte   // 'R' running, 'S' asleep, 'T' stopped …
	ticks uint64 // of processor time that it has had
}

// stateOf looks at a process. It is not known what there is to see on systems
// without /proc.
func stateOf(pid int) (procState, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procState{}, false
	}
	return parseState(stat)
}

// parseState reads what /proc/PID/stat says (proc_pid_stat(5)): the state
// follows the program's name, which is in parentheses and may have any in it.
func parseState(stat []byte) (s procState, ok bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return s, false
	}
	fields := bytes.Fields(stat[end+1:])
	const state, user, system = 0, 11, 12
	if len(fields) <= system || len(fields[state]) != 1 || !isLetter(fields[state][0]) {
		return s, false
	}
	u, err := strconv.ParseUint(string(fields[user]), 10, 64)
	k, errK := strconv.ParseUint(string(fields[system]), 10, 64)
	return procState{fields[state][0], u + k}, err == nil && errK == nil
}

// why says why a process does nothing, if it shows.
func (s procState) why() string {
	switch s.state {
	case 'T':
		return "; its process is stopped"
	case 't':
		return "; its process is stopped by a debugger"
	}
	return ""
}

// isLetter says whether a byte may be a process's state.
func isLetter(b byte) bool { return 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' }
