// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

func TestMaxPool2d(t *testing.T) {
	ps := pools(t)
	nan := float32(math.NaN())
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 31))
		for _, c := range []struct{ height, width, size, stride, padding, dilation int }{
			{5, 6, 2, 2, 0, 1}, {7, 9, 3, 2, 1, 1}, {112, 112, 3, 2, 1, 1}, {9, 33, 3, 1, 1, 2}, {1, 1, 1, 1, 0, 1}, {20, 70, 5, 3, 2, 1},
		} {
			const planes = 5
			out := func(in int) int { return (in+2*c.padding-c.dilation*(c.size-1)-1)/c.stride + 1 }
			h := SlidingWindows(c.height, out(c.height), c.size, c.stride, c.padding, c.dilation, true)
			w := SlidingWindows(c.width, out(c.width), c.size, c.stride, c.padding, c.dilation, true)
			in, size := c.height*c.width, len(h.At)*len(w.At)
			x := uniform(rng, planes*in, -1, 1)
			for i := range x {
				if i%3 == 0 { // equal elements: the first counts
					x[i] = float32(rng.IntN(3))
				}
			}
			x[in/2] = nan
			want, where := make([]float32, planes*size), make([]int32, planes*size)
			for i := range want {
				plane, row, col := i/size, h.At[i%size/len(w.At)], w.At[i%len(w.At)]
				want[i], where[i] = negInf, -1
				for r := row.Lo; r < row.Hi; r += c.dilation {
					for k := col.Lo; k < col.Hi; k += c.dilation {
						at := r*c.width + k
						if v := x[plane*in+at]; v > want[i] || v != v {
							want[i], where[i] = v, int32(at)
						}
					}
				}
			}
			g := uniform(rng, planes*size, -1, 1)
			back := make([]float32, planes*in)
			for i, at := range where {
				back[i/size*in+int(at)] += g[i]
			}
			for _, p := range ps {
				name := fmt.Sprintf("%+v, %d threads", c, threads(p))
				dst, intact := guarded(planes * size)
				index := make([]int32, planes*size)
				MaxPool2d(p, f32(dst), index, f32(x), planes, h, w)
				mustEqualBits(t, name, dst, want)
				if !slices.Equal(index, where) {
					t.Fatalf("%s: positions differ", name)
				}
				dx, dxIntact := guarded(planes * in)
				MaxPool2dBackward(p, f32(dx), f32(g), index, planes, in, size)
				mustEqualBits(t, name+" backward", dx, back)
				picked := make([]float32, planes*size)
				PickAt(p, f32(picked), f32(x), index, planes, in, size)
				mustEqualBits(t, name+" picked", picked, want)
				if !intact() || !dxIntact() {
					t.Fatalf("%s: wrote outside a result", name)
				}
			}
		}
	})
}

// The mean is linear: its backward pass is held by the product rule Σ y·g = Σ
// x·dx, its forward pass by the table in package tensor.
func TestAvgPool2dBackward(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed, 32))
	const planes = 3
	for _, c := range []struct {
		h, w    Windows
		divisor int
	}{
		{AdaptiveWindows(7, 1), AdaptiveWindows(7, 1), 0},
		{AdaptiveWindows(7, 3), AdaptiveWindows(9, 4), 0},
		{SlidingWindows(8, 4, 3, 2, 1, 1, false), SlidingWindows(9, 5, 3, 2, 1, 1, true), 0},
		{SlidingWindows(8, 4, 2, 2, 0, 1, true), SlidingWindows(6, 3, 2, 2, 0, 1, true), 3},
	} {
		in, out := c.h.In*c.w.In, len(c.h.At)*len(c.w.At)
		x, g := uniform(rng, planes*in, -1, 1), uniform(rng, planes*out, -1, 1)
		var first [2][]float32
		for i, p := range pools(t) {
			y, dx := make([]float32, planes*out), make([]float32, planes*in)
			AvgPool2d(p, f32(y), f32(x), planes, c.h, c.w, c.divisor)
			AvgPool2dBackward(p, f32(dx), f32(g), planes, c.h, c.w, c.divisor)
			left, right := 0.0, 0.0
			for j := range y {
				left += float64(y[j]) * float64(g[j])
			}
			for j := range x {
				right += float64(x[j]) * float64(dx[j])
			}
			if !(math.Abs(left-right) <= 1e-5) {
				t.Errorf("%+v: Σ y·g is %v, Σ x·dx is %v", c, left, right)
			}
			if i == 0 {
				first = [2][]float32{y, dx}
			}
			mustEqualBits(t, "forward by threads", y, first[0])
			mustEqualBits(t, "backward by threads", dx, first[1])
		}
	}
}

// Of bfloat16 the results are those of float32 on the same elements, rounded.
func TestPoolsOfBF16(t *testing.T) {
	const planes = 4
	h, w := SlidingWindows(9, 5, 3, 2, 1, 1, true), SlidingWindows(70, 35, 3, 2, 1, 1, true)
	in, out := h.In*w.In, len(h.At)*len(w.At)
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 34))
		wideX, wideG := uniform(rng, planes*in, -1, 1), uniform(rng, planes*out, -1, 1)
		x, g := lowOrNot(true, wideX), lowOrNot(true, wideG)
		run := func(p *work.Pool, low bool, x, g Mixed) (all [][]float32, index []int32) {
			result := func(n int) Mixed { return lowOrNot(low, make([]float32, n)) }
			index = make([]int32, planes*out)
			y, dx, picked, mean, spread := result(planes*out), result(planes*in), result(planes*out), result(planes*out), result(planes*in)
			MaxPool2d(p, y, index, x, planes, h, w)
			MaxPool2dBackward(p, dx, g, index, planes, in, out)
			PickAt(p, picked, x, index, planes, in, out)
			AvgPool2d(p, mean, x, planes, h, w, 0)
			AvgPool2dBackward(p, spread, g, planes, h, w, 0)
			for _, m := range []Mixed{y, dx, picked, mean, spread} {
				all = append(all, m.floats())
			}
			return all, index
		}
		want, where := run(nil, false, f32(wideX), f32(wideG))
		for _, p := range ps {
			got, index := run(p, true, x, g)
			if !slices.Equal(index, where) {
				t.Fatal("positions differ")
			}
			for k := range want {
				lowOrNot(true, want[k]) // rounds
				mustEqualBits(t, fmt.Sprintf("result %d", k), got[k], want[k])
			}
		}
	})
}

func BenchmarkMaxPool2d(b *testing.B) {
	h := SlidingWindows(112, 56, 3, 2, 1, 1, true)
	x, y, at := make([]float32, 256*112*112), make([]float32, 256*56*56), make([]int32, 256*56*56)
	copy(x, uniform(rand.New(rand.NewPCG(testSeed, 33)), len(x), -1, 1))
	for b.Loop() {
		MaxPool2d(nil, f32(y), at, f32(x), 256, h, h)
	}
}
