// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSlabKeepsItsSize: nobody who has a slab's descriptor can make its pages go away from
// under those who have mapped it, and a file of which that is not known is not mapped.
func TestSlabKeepsItsSize(t *testing.T) {
	s, err := NewSlab(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, size := range []int64{0, 4096, 16384} {
		if err := unix.Ftruncate(s.FD, size); err == nil {
			t.Errorf("a slab of 8192 bytes has %d now", size)
		}
	}
	data, err := MapSlab(s.FD, 8192)
	if err != nil {
		t.Fatal(err)
	}
	if err := Unmap(data); err != nil {
		t.Error(err)
	}
	fd, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := MapSlab(fd, 8192); err == nil || !strings.Contains(err.Error(), "size may change") {
		t.Errorf("a file that may be shortened: %v", err)
	}
}
