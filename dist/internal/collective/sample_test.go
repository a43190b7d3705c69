// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"flag"
	"math/rand/v2"
)

// The tests of the plans of many ranks play some of what there is, and with -all
// everything; other ones with another -seed, which a failure names.
var (
	everything = flag.Bool("all", false, "play the plans of all trials, not of a sample")
	seed       = flag.Uint64("seed", 1, "of the sample of trials whose plans are played")
)

// sample returns what picks one of so many trials.
func sample(stream int) func(of int) bool {
	rng := rand.New(rand.NewPCG(*seed, uint64(stream)))
	return func(of int) bool { return rng.IntN(of) == 0 || *everything }
}
