// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"math"
	"slices"
)

// naiveFold combines the elements over dims, which disappear.
func naiveFold(a array, start float64, fn func(acc, x float64) float64, dims ...int) array {
	out := naiveSum(a, dims...) // for its shape
	for i := range out.data {
		out.data[i] = start
	}
	each(a.shape, func(index []int) {
		kept := []int{}
		for d, i := range index {
			if !slices.Contains(dims, d) {
				kept = append(kept, i)
			}
		}
		at := out.position(kept)
		out.data[at] = fn(out.data[at], a.at(index...))
	})
	return out
}

func naiveVar(a array, count, correction float64, dims ...int) array {
	sum, squares := naiveSum(a, dims...), naiveSum(mapArray(func(x float64) float64 { return x * x })([]array{a}), dims...)
	return zipArrays(func(s, q float64) float64 { return (q - s*s/count) / (count - correction) })([]array{sum, squares})
}

// reductionCases are what combines elements other than by their sum.
func reductionCases(dev Device) []opCase {
	on := On(dev)
	top := func(acc, x float64) float64 { return max(acc, x) }
	bottom := func(acc, x float64) float64 { return min(acc, x) }
	times := func(acc, x float64) float64 { return acc * x }
	inf := math.Inf(1)
	flags := []float32{1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1}
	row := func(name string, shape []int, apply func(x *Tensor) *Tensor, naive func(a array) array) opCase {
		return opCase{
			name: name, shapes: [][]int{shape}, apply: func(in []*Tensor) *Tensor { return apply(in[0]) },
			naive: func(in []array) array { return naive(in[0]) },
		}
	}
	powers := func(p float64, dims ...int) func(a array) array {
		return func(a array) array {
			sum := naiveSum(mapArray(func(x float64) float64 { return math.Pow(math.Abs(x), p) })([]array{a}), dims...)
			return mapArray(func(x float64) float64 { return math.Pow(x, 1/p) })([]array{sum})
		}
	}
	return []opCase{
		row("amax", []int{3, 4}, func(x *Tensor) *Tensor { return x.AMax(1) }, func(a array) array { return naiveFold(a, -inf, top, 1) }),
		row("amax all", []int{3, 4}, func(x *Tensor) *Tensor { return x.AMax() }, func(a array) array { return naiveFold(a, -inf, top, 0, 1) }),
		row("amax ends", []int{2, 3, 4}, func(x *Tensor) *Tensor { return x.AMax(0, 2) }, func(a array) array { return naiveFold(a, -inf, top, 0, 2) }),
		row("amin strided", []int{4, 3}, func(x *Tensor) *Tensor { return x.T().AMin(1) }, func(a array) array { return naiveFold(a, inf, bottom, 0) }),
		row("amin keep", []int{3, 4}, func(x *Tensor) *Tensor { return x.Sub(x.AMinKeep(0)) }, func(a array) array {
			return zipArrays(func(x, y float64) float64 { return x - y })([]array{a, naiveFold(a, inf, bottom, 0)})
		}),
		row("max", []int{2, 4, 3}, func(x *Tensor) *Tensor { v, _ := x.Max(1); return v }, func(a array) array { return naiveFold(a, -inf, top, 1) }),
		row("min", []int{3, 4}, func(x *Tensor) *Tensor { v, _ := x.Min(-1); return v }, func(a array) array { return naiveFold(a, inf, bottom, 1) }),
		row("prod", []int{3, 4}, func(x *Tensor) *Tensor { return x.Prod(1) }, func(a array) array { return naiveFold(a, 1, times, 1) }),
		row("prod ends", []int{2, 3, 2}, func(x *Tensor) *Tensor { return x.Prod(0, 2) }, func(a array) array { return naiveFold(a, 1, times, 0, 2) }),
		row("prod all", []int{2, 3}, func(x *Tensor) *Tensor { return x.Prod() }, func(a array) array { return naiveFold(a, 1, times, 0, 1) }),
		row("prod with zeros", []int{3, 5}, func(x *Tensor) *Tensor { return x.Mul(on.FromFloat32(flags, 3, 5)).Prod(1) }, func(a array) array {
			return naiveFold(zipArrays(func(x, y float64) float64 { return x * y })([]array{a, {[]int{3, 5}, widen(flags)}}), 1, times, 1)
		}),
		row("var", []int{3, 4}, func(x *Tensor) *Tensor { return x.Var(1, 1) }, func(a array) array { return naiveVar(a, 4, 1, 1) }),
		row("var biased", []int{2, 3, 4}, func(x *Tensor) *Tensor { return x.Var(0, 0, 2) }, func(a array) array { return naiveVar(a, 8, 0, 0, 2) }),
		row("std", []int{3, 4}, func(x *Tensor) *Tensor { return x.Std(1) }, func(a array) array {
			return mapArray(math.Sqrt)([]array{naiveVar(a, 12, 1, 0, 1)})
		}),
		row("norm", []int{3, 4}, func(x *Tensor) *Tensor { return x.Norm(2, 1) }, powers(2, 1)),
		row("norm 1", []int{3, 4}, func(x *Tensor) *Tensor { return x.Norm(1) }, powers(1, 0, 1)),
		row("norm 3", []int{3, 4}, func(x *Tensor) *Tensor { return x.Norm(3, 0) }, powers(3, 0)),
		row("norm inf", []int{3, 4}, func(x *Tensor) *Tensor { return x.Norm(inf, 0) }, func(a array) array {
			return naiveFold(mapArray(math.Abs)([]array{a}), 0, top, 0)
		}),
	}
}
