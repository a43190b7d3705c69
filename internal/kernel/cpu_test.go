// SPDX-License-Identifier: Apache-2.0

package kernel

import "testing"

// forEachISA runs fn as a subtest once for every instruction set that this
// machine has, from portable Go up.
func forEachISA(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	defer func(old isa) { useISA = old }(useISA)
	for i := portable; i <= bestISA; i++ {
		useISA = i
		t.Run(i.String(), fn)
	}
}
