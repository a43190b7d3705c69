// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/random"
)

// TestDropoutMask: element i's bit says whether its word of the stream is below
// the bound, for every length, thread count and instruction set.
func TestDropoutMask(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 7, 8, 31, 32, 63, 64, 65, 200, maskRun, 3*maskRun + 77} {
			for _, keep := range []uint32{0, 1 << 20, 1<<31 - 5, 3 << 30, math.MaxUint32} {
				rng, stream := random.Philox{Key: 0xdeadbeefcafe}, uint64(1)<<40+3
				words := make([]uint32, n)
				rng.Uint32s(words, stream, 0)
				for _, p := range ps {
					mask := make([]uint8, (n+7)/8)
					DropoutMask(p, mask, n, rng, stream, keep)
					for i := range 8 * len(mask) {
						want := i < n && words[min(i, n-1)] < keep
						if got := mask[i/8]>>(i%8)&1 == 1; got != want {
							t.Fatalf("n=%d keep=%#x: bit %d is %v, want %v", n, keep, i, got, want)
						}
					}
				}
			}
		}
	})
}

func TestMaskScale(t *testing.T) {
	ps := pools(t)
	rng := rand.New(rand.NewPCG(6, 0))
	forEachISA(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 15, 16, 17, 100, callElems + 5, 3*callElems + 9} {
			x, mask := uniform(rng, n, -3, 3), make([]uint8, (n+7)/8)
			for i := range mask {
				mask[i] = uint8(rng.Uint32())
			}
			for i := 5; i < n; i += 50 {
				x[i] = float32(math.NaN())
			}
			for _, p := range ps {
				dst, intact := guarded(n)
				MaskScale(p, dst, x, mask, 1.25)
				for i, v := range x {
					want := v * 0
					if mask[i/8]>>(i%8)&1 == 1 {
						want = v * 1.25
					}
					if dst[i] != want && (v == v || dst[i] == dst[i]) {
						t.Fatalf("n=%d: element %d of %v is %v, want %v", n, i, v, dst[i], want)
					}
				}
				if !intact() {
					t.Fatalf("n=%d: wrote beyond the end", n)
				}
			}
		}
	})
}

// BenchmarkDropout is what a layer of dropout costs forward (the mask and its use)
// and backward (its use), beside a copy:
//
//	go test -run '^$' -bench Dropout ./internal/kernel
func BenchmarkDropout(b *testing.B) {
	const n = 1 << 20
	x, y, mask := make([]float32, n), make([]float32, n), make([]uint8, n/8)
	for _, op := range []struct {
		name string
		f    func()
	}{
		{"copy", func() { Copy(nil, y, x) }},
		{"mask", func() { DropoutMask(nil, mask, n, random.Philox{Key: 1}, 7, 1<<31) }},
		{"scale", func() { MaskScale(nil, y, x, mask, 2) }},
	} {
		b.Run(fmt.Sprintf("n=%d/%s", n, op.name), func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				op.f()
			}
		})
	}
}
