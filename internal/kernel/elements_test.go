// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestTranspose: every size about the squares of eight that assembly does.
func TestTranspose(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		for _, size := range [][2]int{{1, 1}, {7, 9}, {8, 8}, {9, 7}, {16, 8}, {8, 24}, {17, 33}, {40, 64}} {
			rows, cols := size[0], size[1]
			const pad = 3 // rows and columns lie apart
			dst, src := make([]float32, rows*(cols+pad)), make([]float32, cols*(rows+pad))
			for i := range src {
				src[i] = float32(i)
			}
			for i := range dst {
				dst[i] = -1
			}
			Transpose(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), rows, cols, 4*(cols+pad), 4*(rows+pad))
			for r := range rows {
				for c := range cols + pad {
					want := float32(-1)
					if c < cols {
						want = src[c*(rows+pad)+r]
					}
					if got := dst[r*(cols+pad)+c]; got != want {
						t.Fatalf("%d by %d: element [%d %d] is %v, want %v", rows, cols, r, c, got, want)
					}
				}
			}
		}
	})
}

// TestColumns: an element for each row, in few long rows and many short ones.
func TestColumns(t *testing.T) {
	ps := pools(t)
	rng := rand.New(rand.NewPCG(3, 0))
	forEachISA(t, func(t *testing.T) {
		for _, size := range [][2]int{{3, 5}, {700, 33}, {2, callElems + 7}} {
			rows, cols := size[0], size[1]
			a, column := uniform(rng, rows*cols, -3, 3), uniform(rng, rows, -3, 3)
			for _, p := range ps {
				sum, product := make([]float32, rows*cols), make([]float32, rows*cols)
				AddColumn(p, sum, a, column, rows, cols)
				MulColumn(p, product, a, column, rows, cols)
				for i, x := range a {
					if s := column[i/cols]; sum[i] != x+s || product[i] != x*s {
						t.Fatalf("%d by %d: element %d is %v and %v, want %v and %v", rows, cols, i, sum[i], product[i], x+s, x*s)
					}
				}
			}
		}
	})
}

// TestLogSumExp against the definition, with infinities and NaN.
func TestLogSumExp(t *testing.T) {
	ps := pools(t)
	rng := rand.New(rand.NewPCG(5, 0))
	inf := float32(math.Inf(1))
	forEachISA(t, func(t *testing.T) {
		for _, size := range [][2]int{{5, 1}, {300, 37}, {2, 40_000}} {
			rows, cols := size[0], size[1]
			x := uniform(rng, rows*cols, -80, 80)
			x[cols-1] = inf
			for i := range cols {
				x[cols+i] = -inf
			}
			if rows > 2 {
				x[2*cols] = float32(math.NaN())
			}
			for _, p := range ps {
				got := make([]float32, rows)
				LogSumExp(p, got, x, rows, cols)
				for r := range rows {
					top, sum := math.Inf(-1), 0.0
					for _, v := range x[r*cols : (r+1)*cols] {
						top = max(top, float64(v))
					}
					for _, v := range x[r*cols : (r+1)*cols] {
						sum += math.Exp(float64(v) - top)
					}
					want := top + math.Log(sum)
					if math.IsInf(top, 0) {
						want = top
					}
					if g := float64(got[r]); g != want && !(math.Abs(g-want) <= 1e-6*(1+math.Abs(want))) && !(g != g && want != want) {
						t.Fatalf("%d by %d: row %d is %v, want %v", rows, cols, r, g, want)
					}
				}
			}
		}
	})
}
