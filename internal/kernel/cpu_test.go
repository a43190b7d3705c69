// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"flag"
	"testing"
)

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

// forEachBF16 runs fn as forEachISA does, and once more where the machine
// multiplies pairs of bfloat16: so, and without.
func forEachBF16(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	defer func(old bool) { usePairs = old }(usePairs)
	usePairs = false
	forEachISA(t, fn)
	if hasPairs {
		usePairs = true
		t.Run("avx512bf16", fn)
	}
}

// full makes tests try all of their random cases: go test ./internal/kernel -full.
var full = flag.Bool("full", false, "try all random cases, not a third of them")

// howMany returns how many of n random cases a test tries.
func howMany(n int) int {
	switch {
	case *full:
		return n
	case testing.Short():
		return n / 6
	}
	return n / 3
}
