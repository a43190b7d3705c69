// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/internal/random"
)

// TestDropoutScales holds every variant against the generator's own words.
func TestDropoutScales(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		for _, r := range []random.Philox{{Key: 0}, {Key: 0xfedcba9876543210}} {
			for _, stream := range []uint64{0, 5, 1<<40 + 3} {
				// The third begins where the low half of the block's number overflows.
				for _, offset := range []uint64{0, 6, 4<<32 - 37, math.MaxUint64>>4 + 1} {
					for _, n := range []int{0, 1, 3, 64, 77, 255, 600} {
						const p = 0.3
						share := float32(p)
						words := make([]uint32, n)
						r.Uint32s(words, stream, offset)
						got, intact := guarded(n)
						DropoutScales(got, r, stream, offset, p)
						if !intact() {
							t.Fatal("wrote outside the result")
						}
						for i, w := range words {
							want := float32(1 / (1 - float64(share)))
							if float64(w) < math.Floor(float64(share)*(1<<32)) {
								want = 0
							}
							if got[i] != want {
								t.Fatalf("key %#x, stream %d, offset %d: element %d of %d is %v, want %v", r.Key, stream, offset, i, n, got[i], want)
							}
						}
						if offset == 0 {
							checkDropoutMask(t, r, stream, words)
						}
					}
				}
			}
		}
	})
}

func checkDropoutMask(t *testing.T, r random.Philox, stream uint64, words []uint32) {
	t.Helper()
	const keep = 3 << 30
	mask := make([]uint8, (len(words)+7)/8)
	DropoutMask(nil, mask, len(words), r, stream, keep)
	for i := range 8 * len(mask) {
		want := i < len(words) && words[i] < keep
		if got := mask[i/8]>>(i%8)&1 == 1; got != want {
			t.Fatalf("key %#x, stream %d: bit %d of a mask of %d is %t, want %t", r.Key, stream, i, len(words), got, want)
		}
	}
}

func BenchmarkDropoutScales(b *testing.B) {
	dst := make([]float32, 128)
	b.SetBytes(4 * 128)
	for b.Loop() {
		DropoutScales(dst, random.Philox{Key: 3}, 1, 12345*128, 0.1)
	}
}
