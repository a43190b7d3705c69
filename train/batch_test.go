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

// TestStepSizeSays: what is in the way is said with sums that are right.
func TestStepSizeSays(t *testing.T) {
	for _, c := range []struct {
		was, now stepSize
		given    map[string]string
		want     stepSize
		conflict string
	}{
		{stepSize{2, 4, 1, 0}, stepSize{4, 4, 1, 0}, nil, stepSize{4, 2, 1, 0}, ""},
		{stepSize{2, 4, 1, 0}, stepSize{3, 4, 1, 0}, nil, stepSize{3, 3, 1, 8}, ""},
		{stepSize{2, 2, 2, 0}, stepSize{8, 2, 2, 0}, nil, stepSize{8, 1, 1, 0}, ""},
		{stepSize{2, 2, 2, 0}, stepSize{5, 2, 2, 0}, nil, stepSize{5, 2, 1, 8}, ""},
		{stepSize{5, 2, 1, 8}, stepSize{9, 2, 1, 0}, nil, stepSize{9, 2, 1, 0}, "it takes 8 sequences a step: at most 8 ranks, not 9"},
		{stepSize{5, 2, 1, 8}, stepSize{2, 3, 1, 0}, map[string]string{"batch": "flag"}, stepSize{2, 3, 1, 0},
			"ranks × sequences: 2 × 3 = 6 a step, the checkpoint's run has 8 among 5 ranks (set --batch)"},
	} {
		got := c.now
		if conflict := got.adopt(c.was, c.given, "sequences"); conflict != c.conflict || got != c.want {
			t.Errorf("%v after %v: %+v, %q, want %+v, %q", c.now, c.was, got, conflict, c.want, c.conflict)
		}
	}
}
