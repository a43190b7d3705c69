// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"os"
	"strconv"
)

// whyIdle says why a process of this host does nothing, if the system shows it.
func whyIdle(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	return idleOf(stat)
}

// idleOf reads what /proc/PID/stat says (proc_pid_stat(5)): the state follows
// the program's name, which is in parentheses and may have any in it.
func idleOf(stat []byte) string {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 || len(stat) < end+3 {
		return ""
	}
	switch stat[end+2] {
	case 'T':
		return "; its process is stopped"
	case 't':
		return "; its process is stopped by a debugger"
	}
	return ""
}
