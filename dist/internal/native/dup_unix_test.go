// SPDX-License-Identifier: Apache-2.0

//go:build unix

package native

import (
	"testing"

	"golang.org/x/sys/unix"
)

func dup(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
