// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"testing"

	"github.com/cohort-ml/cohort/internal/transport"
)

// TestPyTorchFamilies: ranks that meet at an IPv6 address talk over that of their host's
// name all the same.
func TestPyTorchFamilies(t *testing.T) {
	eachPython(t, func(t *testing.T, p *python) {
		for place := range 2 {
			port, err := transport.HoldPort("::1")
			if err != nil {
				t.Skipf("this host has no ::1: %v", err)
			}
			defer port.Close()
			mixedJob{python: p, size: 2, goes: []int{place}, url: "tcp://" + port.Addr()}.both(t, little(0))
		}
	})
}
