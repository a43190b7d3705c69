// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"fmt"
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

// sizeSeals keep a memory file at its size: who has mapped it need not fear for what it
// touches.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// checkSealed returns an error if the size of a peer's memory file may change.
func checkSealed(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("it is no memory file: %w", err)
	}
	if seals&sizeSeals != sizeSeals {
		return fmt.Errorf("its size may change (seals %#x)", seals)
	}
	return nil
}

func shareable(size int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate("cohort", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|unix.F_SEAL_SEAL)
	}
	if err != nil {
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
