// SPDX-License-Identifier: Apache-2.0

// Package seeded is for tests that draw at random: they draw the same each time, so that
// none fails by chance and for nobody to see again. Who looks for faults plays others:
//
//	go test ./dist/store -run Linearizable -seed 0 -count 20 -v
package seeded

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seed = flag.Uint64("seed", 1, "the seed of tests that draw at random; 0 draws one")

// Of returns the seed of a test, and logs it.
func Of(t testing.TB) uint64 {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("-seed %d", s)
	return s
}
