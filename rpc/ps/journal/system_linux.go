// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the bytes and the length of a file durable.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// writeBack asks the kernel to begin moving bytes of a file to the disk. It is a hint: its error
// says nothing about the file.
func writeBack(f *os.File, from, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}
