// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mem

import "golang.org/x/sys/unix"

func mapPrivate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func mapShared(fd, size int) ([]byte, error) {
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func unmap(data []byte) error { return unix.Munmap(data) }

func closeFD(fd int) error { return unix.Close(fd) }
