// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"net"
	"strings"
	"testing"
)

// TestPyTorchFamilies: ranks that meet at an IPv6 address talk over that of their host's
// name all the same.
func TestPyTorchFamilies(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for place := range 2 {
			l, err := net.Listen("tcp", "[::1]:0")
			if err != nil {
				t.Skipf("this host has no ::1: %v", err)
			}
			l.Close()
			url := "tcp://" + strings.Replace(freeAddr(), "127.0.0.1", "[::1]", 1)
			mixedJob{python: p, size: 2, goes: []int{place}, url: url}.both(t, little(0))
		}
	})
}
