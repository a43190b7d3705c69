// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// writeBack asks the kernel to begin moving bytes of a file to the disk. It only
// hints: its error says nothing about the file.
func writeBack(f *os.File, from, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}

// exchange gives two files each other's names. The error is one of [errors.ErrUnsupported] where the
// file system cannot.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

// freeBytes returns how much can be written on the file system of path.
func freeBytes(path string) (bytes int64, known bool, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(path, &st)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return 0, false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, true, nil
}
