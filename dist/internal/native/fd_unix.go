// SPDX-License-Identifier: Apache-2.0

//go:build unix

package native

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func closeFD(fd int) { _ = unix.Close(fd) }

// checkSize returns an error if the file behind a descriptor is shorter than
// a peer says: touching memory beyond its end would kill this process.
func checkSize(fd, size int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at a peer's memory file: %w", err)
	}
	if size <= 0 || st.Size < int64(size) {
		return fmt.Errorf("a peer's memory file has %d bytes, not %d", st.Size, size)
	}
	return nil
}
