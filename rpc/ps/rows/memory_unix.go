// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rows

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the alignment of memory: the system gives huge pages only where they fit.
const hugePage = 2 << 20

// reserve takes cleared memory from the system.
func reserve(size int) ([]byte, error) {
	whole := size
	if size >= hugePage {
		whole += hugePage
	}
	data, err := unix.MmapPtr(-1, 0, nil, uintptr(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	skip := 0
	if size >= hugePage {
		skip = int(-uintptr(data) & (hugePage - 1))
		cut(data, skip)
		page := unix.Getpagesize()
		end := (skip + size + page - 1) &^ (page - 1)
		cut(unsafe.Add(data, end), whole-end)
	}
	got := unsafe.Slice((*byte)(unsafe.Add(data, skip)), size)
	adviseHuge(got)
	return got, nil
}

// cut gives back a part of what was reserved.
func cut(at unsafe.Pointer, size int) {
	if size > 0 {
		_ = unix.MunmapPtr(at, uintptr(size))
	}
}

// release gives memory of reserve back.
func release(data []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(data)), uintptr(len(data)))
}
