// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "golang.org/x/sys/unix"

// writeBackBytes is how much of a file is written before the kernel is asked
// to begin moving it to the disk.
const writeBackBytes = 32 << 20

// writeBack lets the disk work while the rest of the file is still being
// written, so that the fsync at the end finds less to do. It only hints: its
// error says nothing about the file.
func (s *save) writeBack(f *File) {
	if s.noSync || f.size-f.begun < writeBackBytes {
		return
	}
	_ = unix.SyncFileRange(int(f.f.Fd()), f.begun, f.size-f.begun, unix.SYNC_FILE_RANGE_WRITE)
	f.begun = f.size
}
