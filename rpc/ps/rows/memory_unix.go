// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rows

import "golang.org/x/sys/unix"

// reserve takes cleared memory from the system.
func reserve(size int) ([]byte, error) {
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		adviseHuge(data)
	}
	return data, err
}

func release(data []byte) error { return unix.Munmap(data) }
