// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// reserve takes size bytes from the system, aligned to a huge page and asking
// for them: tables of 4 KiB pages cost a matrix product some percent.
func reserve(size int) (unsafe.Pointer, error) {
	data, err := mapPrivate(size + hugePage)
	if err != nil {
		return nil, err
	}
	start := unsafe.Pointer(unsafe.SliceData(data))
	skip := -uintptr(start) & (hugePage - 1)
	_ = unix.Madvise(data[skip:int(skip)+size], unix.MADV_HUGEPAGE) // advice only
	return unsafe.Add(start, skip), nil
}

func shareable(size int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate("cohort", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, -1, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	data, err := mapShared(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // where the system has them for shared memory
	return data, fd, nil
}
