// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math/rand/v2"
	"testing"
)

// TestStepSizeAdopts: a run goes on with as many samples a step on any number of
// ranks that is not larger, and on others again, with none left without one.
func TestStepSizeAdopts(t *testing.T) {
	const seed = 6
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 100_000 {
		was := stepSize{1 + r.IntN(9), 1 + r.IntN(20), 1 + r.IntN(6), 0}
		total := was.total()
		for range 3 {
			now := stepSize{1 + r.IntN(40), was.batch, was.accumulate, was.uneven}
			conflict := now.adopt(was, nil, "samples")
			if now.ranks > total {
				if conflict == "" {
					t.Fatalf("seed %d, case %d: %+v became %+v: too few samples", seed, i, was, now)
				}
				break
			}
			pass := now.pass()
			if conflict != "" || now.total() != total || pass*now.accumulate != total || pass < now.ranks || now.batch != (pass+now.ranks-1)/now.ranks {
				t.Fatalf("seed %d, case %d: %+v became %+v: %d samples in %d passes of %d, want %d in all; %s",
					seed, i, was, now, now.total(), now.accumulate, pass, total, conflict)
			}
			was = now
		}
	}
}
