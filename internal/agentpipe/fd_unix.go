// SPDX-License-Identifier: Apache-2.0

//go:build unix

package agentpipe

import (
	"os"
	"syscall"
)

// openPipe wraps an inherited descriptor if it is a pipe, and keeps it from
// being inherited further. Non-blocking mode comes before NewFile: only then
// does Close end a Read that waits.
func openPipe(fd int) *os.File {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "agentpipe")
}
