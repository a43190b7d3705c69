// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package mem

import "unsafe"

func reserve(size int) (unsafe.Pointer, error) {
	data, err := mapPrivate(size)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(unsafe.SliceData(data)), nil
}

// checkSealed has nothing to look at: no memory is shared here.
func checkSealed(int) error { return nil }

func shareable(size int) ([]byte, int, error) {
	data, err := mapPrivate(size)
	return data, -1, err
}
