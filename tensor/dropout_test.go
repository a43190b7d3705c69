// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/random"
	"github.com/cohort-ml/cohort/internal/work"
)

func TestDropoutDropsItsShare(t *testing.T) {
	const n = 100_003
	for _, p := range []float64{0.1, 0.5, 0.9} {
		y := Dropout(Full(1, n), p, NewGenerator(5)).Float32s()
		zeros, scale := 0, float32(1/(1-p))
		for i, v := range y {
			switch v {
			case 0:
				zeros++
			case scale:
			default:
				t.Fatalf("p=%v: element %d is %v, want 0 or %v", p, i, v, scale)
			}
		}
		// Five deviations of a binomial distribution.
		if d := math.Abs(float64(zeros) - p*n); d > 5*math.Sqrt(n*p*(1-p)) {
			t.Errorf("p=%v: %d of %d are dropped", p, zeros, n)
		}
	}
}

// The mask is a function of the generator alone: not of the number of threads,
// and the element's number decides its bit.
func TestDropoutDoesNotDependOnThreads(t *testing.T) {
	const n, keep = 40_005, 1 << 31
	rng := random.Philox{Key: 9}
	words := make([]uint32, n)
	rng.Uint32s(words, 3, 0)
	for _, threads := range []int{1, 3} {
		pool := work.New(threads)
		mask := make([]uint8, (n+7)/8)
		kernel.DropoutMask(pool, mask, n, rng, 3, keep)
		pool.Close()
		for i, w := range words {
			if got := mask[i/8]>>(i%8)&1 == 1; got != (w < keep) {
				t.Fatalf("%d threads: bit %d is %v, its word is %#x", threads, i, got, w)
			}
		}
		if last := mask[len(mask)-1]; last>>(n%8) != 0 {
			t.Errorf("bits beyond the last element are set: %#b", last)
		}
	}
}

func TestDropoutRepeatsWithItsGenerator(t *testing.T) {
	g := NewGenerator(1)
	first, second := Dropout(Full(1, 64), 0.5, g).Float32s(), Dropout(Full(1, 64), 0.5, g).Float32s()
	if slices.Equal(first, second) {
		t.Error("two draws of one generator drop the same elements")
	}
	if again := Dropout(Full(1, 64), 0.5, NewGenerator(1)).Float32s(); !slices.Equal(first, again) {
		t.Error("the same seed drops other elements")
	}
}

func TestDropoutAtTheEnds(t *testing.T) {
	x := FromFloat32([]float32{1, -2, float32(math.NaN())})
	if y := Dropout(x, 0, nil); y != x {
		t.Error("p = 0 is not the identity")
	}
	if y := Dropout(x, 1, nil).Float32s(); y[0] != 0 || y[1] != 0 {
		t.Errorf("p = 1 gives %v", y)
	}
	nan := Dropout(Full(math.NaN(), 100), 0.5, NewGenerator(0)).Float32s()
	if slices.ContainsFunc(nan, func(v float32) bool { return v == v }) {
		t.Error("a dropped NaN is gone")
	}
	mustFail(t, "wants a generator", func() { Dropout(x, 0.5, nil) })
	mustFail(t, "between 0 and 1", func() { Dropout(x, 1.5, nil) })
	mustFail(t, "between 0 and 1", func() { Dropout(x, math.NaN(), nil) })
	mustFail(t, "floating dtype", func() { Dropout(FromInt64([]int64{1}), 0.5, nil) })
}
