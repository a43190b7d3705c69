// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// optimizerCase is a step of an optimizer: state holds the parameter, the
// gradient and up to three more arrays; run does a step of all parts of the
// arrays in one call; oracle does an element in float64.
type optimizerCase struct {
	name   string
	run    func(p *work.Pool, parts [][5][]float32)
	oracle func(x [5]float64) [5]float64
}

func each5[T any](parts [][5][]float32, item func(x [5][]float32) T) []T {
	var items []T
	for _, x := range parts {
		items = append(items, item(x))
	}
	return items
}

func optimizerCases() []optimizerCase {
	var cases []optimizerCase
	f32 := func(x float64) float64 { return float64(float32(x)) }
	for i := range 16 {
		momentum, first, nesterov, climb := i&1 != 0, i&2 != 0, i&4 != 0, i&8 != 0
		s := SGDStep{LR: 0.1, WeightDecay: 0.01, Dampening: 0.2, First: first, Nesterov: nesterov, GradScale: 0.7}
		if climb {
			s.GradScale = -0.7
		}
		if momentum {
			s.Momentum = 0.9
		}
		cases = append(cases, optimizerCase{fmt.Sprintf("SGD%+v", s), func(p *work.Pool, parts [][5][]float32) {
			SGD(p, each5(parts, func(x [5][]float32) SGDItem {
				if !momentum {
					return SGDItem{x[0], x[1], nil, s}
				}
				return SGDItem{x[0], x[1], x[2], s}
			}))
		}, func(x [5]float64) [5]float64 {
			g := f32(s.GradScale)*x[1] + f32(s.WeightDecay)*x[0]
			d := g
			if momentum {
				if first {
					x[2] = g
				} else {
					x[2] = f32(0.9)*x[2] + f32(0.8)*g
				}
				d = x[2]
				if nesterov {
					d = g + f32(0.9)*x[2]
				}
			}
			x[0] -= f32(0.1) * d
			return x
		}})
	}
	for i := range 8 {
		s := AdamStep{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, WeightDecay: 0.1, Bias1: 0.19, Bias2: 0.0199, Decoupled: i&1 != 0, GradScale: 0.7}
		amsgrad := i&2 != 0
		if i&4 != 0 {
			s.Beta1 = 0.3
		}
		cases = append(cases, optimizerCase{fmt.Sprintf("Adam%+v amsgrad %t", s, amsgrad), func(p *work.Pool, parts [][5][]float32) {
			Adam(p, each5(parts, func(x [5][]float32) AdamItem {
				if !amsgrad {
					x[4] = nil
				}
				return AdamItem{x[0], x[1], x[2], x[3], x[4], s}
			}))
		}, func(x [5]float64) [5]float64 {
			g := f32(s.GradScale) * x[1]
			if s.Decoupled {
				x[0] *= 1 - s.LR*s.WeightDecay
			} else {
				g += s.WeightDecay * x[0]
			}
			x[2] = s.Beta1*x[2] + (1-s.Beta1)*g
			x[3] = s.Beta2*x[3] + (1-s.Beta2)*g*g
			v := x[3]
			if amsgrad {
				x[4] = max(x[4], v)
				v = x[4]
			}
			x[0] -= s.LR / s.Bias1 * x[2] / (math.Sqrt(v)/math.Sqrt(s.Bias2) + s.Eps)
			return x
		}})
	}
	adagrad := AdagradStep{LR: 0.1, WeightDecay: 0.01, Eps: 1e-8, GradScale: 0.7}
	cases = append(cases, optimizerCase{"Adagrad", func(p *work.Pool, parts [][5][]float32) {
		Adagrad(p, each5(parts, func(x [5][]float32) AdagradItem { return AdagradItem{x[0], x[1], x[3], adagrad} }))
	}, func(x [5]float64) [5]float64 {
		g := 0.7*x[1] + 0.01*x[0]
		x[3] += g * g
		x[0] -= 0.1 * g / (math.Sqrt(x[3]) + 1e-8)
		return x
	}})
	for i := range 8 {
		s := RMSpropStep{LR: 0.01, Alpha: 0.9, Eps: 1e-6, WeightDecay: 0.01, GradScale: 0.7}
		centered, momentum := i&1 != 0, i&2 != 0
		if momentum {
			s.Momentum = 0.8
		}
		if i&4 != 0 {
			s.Alpha = 0.2
		}
		cases = append(cases, optimizerCase{fmt.Sprintf("RMSprop%+v centered %t", s, centered), func(p *work.Pool, parts [][5][]float32) {
			RMSprop(p, each5(parts, func(x [5][]float32) RMSpropItem {
				t := RMSpropItem{Param: x[0], Grad: x[1], SquareAvg: x[3], RMSpropStep: s}
				if centered {
					t.GradAvg = x[2]
				}
				if momentum {
					t.MomentumBuf = x[4]
				}
				return t
			}))
		}, func(x [5]float64) [5]float64 {
			g := 0.7*x[1] + 0.01*x[0]
			x[3] = s.Alpha*x[3] + (1-s.Alpha)*g*g
			d := x[3]
			if centered {
				x[2] = s.Alpha*x[2] + (1-s.Alpha)*g
				d -= x[2] * x[2]
			}
			step := g / (math.Sqrt(d) + s.Eps)
			if momentum {
				x[4] = s.Momentum*x[4] + step
				step = x[4]
			}
			x[0] -= s.LR * step
			return x
		}})
	}
	for _, w := range []float64{0, 0.001, 0.7, 1} {
		cases = append(cases, optimizerCase{fmt.Sprintf("Lerp %v", w), func(p *work.Pool, parts [][5][]float32) {
			Lerp(p, each5(parts, func(x [5][]float32) LerpItem { return LerpItem{x[0], x[1]} }), w)
		}, func(x [5]float64) [5]float64 {
			x[0] += w * (x[1] - x[0])
			return x
		}})
	}
	return append(cases, optimizerCase{"Swap", func(p *work.Pool, parts [][5][]float32) {
		Swap(p, each5(parts, func(x [5][]float32) LerpItem { return LerpItem{x[0], x[2]} }))
	}, func(x [5]float64) [5]float64 {
		x[0], x[2] = x[2], x[0]
		return x
	}}, optimizerCase{"Clamp", func(p *work.Pool, parts [][5][]float32) {
		Clamp(p, each5(parts, func(x [5][]float32) []float32 { return x[0] }), 0.25)
	}, func(x [5]float64) [5]float64 {
		x[0] = max(-0.25, min(0.25, x[0]))
		return x
	}})
}

// optimizerState has small first and large second moments, so that what is
// under a root is positive for every case.
func optimizerState(rng *rand.Rand, n int) (x [5][]float32) {
	for j, r := range [][2]float64{{-1, 1}, {-1, 1}, {-0.2, 0.2}, {0.3, 1}, {0.3, 1}} {
		x[j] = uniform(rng, n, r[0], r[1])
	}
	return x
}

// guardedState returns a copy of a state that shows what is written outside.
func guardedState(from [5][]float32) (x [5][]float32, intact func() bool) {
	var marks []func() bool
	for j := range x {
		var mark func() bool
		x[j], mark = guarded(len(from[j]))
		copy(x[j], from[j])
		marks = append(marks, mark)
	}
	return x, func() bool {
		for _, m := range marks {
			if !m() {
				return false
			}
		}
		return true
	}
}

// cut splits arrays into parameters of many sizes, empty ones too.
func cut(x [5][]float32) [][5][]float32 {
	var parts [][5][]float32
	n := len(x[0])
	for lo, size := 0, 0; lo < n; size = (size*3 + 7) % 20011 {
		hi := min(lo+size, n)
		var part [5][]float32
		for j := range x {
			part[j] = x[j][lo:hi:hi]
		}
		parts = append(parts, part)
		lo = hi
	}
	return parts
}

// TestOptimizersAgreeWithOracle holds every step against float64, and the
// variants, numbers of threads, and ways of cutting parameters against the
// bits of the portable twin.
func TestOptimizersAgreeWithOracle(t *testing.T) {
	ps := pools(t)
	defer func(old isa) { useISA = old }(useISA)
	sizes := []int{1, 7, 8, 17, 33, 129, 1000, 70001}
	starts := map[int][5][]float32{}
	for _, n := range sizes {
		starts[n] = optimizerState(rand.New(rand.NewPCG(testSeed, uint64(n))), n)
	}
	for _, c := range optimizerCases() {
		for _, n := range sizes {
			if n > 1000 && testing.Short() {
				continue
			}
			start := starts[n]
			var want [5][]float32
			for k := portable; k <= bestISA; k++ {
				useISA = k
				for i, p := range ps {
					for _, whole := range []bool{true, false} {
						x, intact := guardedState(start)
						parts := [][5][]float32{x}
						if !whole {
							parts = cut(x)
						}
						c.run(p, parts)
						if !intact() {
							t.Fatalf("%s n=%d %v: wrote outside", c.name, n, k)
						}
						if want[0] == nil {
							want = x
						}
						for j := range x {
							mustEqualBits(t, fmt.Sprintf("%s n=%d %v, pool %d, array %d, whole %t, seed %d", c.name, n, k, i, j, whole, testSeed), x[j], want[j])
						}
					}
				}
			}
			for i := range n {
				var e [5]float64
				for j := range e {
					e[j] = float64(start[j][i])
				}
				for j, o := range c.oracle(e) {
					if got := float64(want[j][i]); !(math.Abs(got-o) <= 1e-6*(1+math.Abs(o))) {
						t.Fatalf("%s n=%d: element %d of array %d is %v, want %v", c.name, n, i, j, got, o)
					}
				}
			}
		}
	}
}

// TestOptimizersKeepNaN: a gradient that is no number shows in the parameter.
func TestOptimizersKeepNaN(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		for _, c := range optimizerCases() {
			x, _ := guardedState(optimizerState(rand.New(rand.NewPCG(testSeed, 1)), 40))
			nan := float32(math.NaN())
			x[1][3], x[1][39], x[0][20] = nan, nan, nan
			c.run(nil, [][5][]float32{x})
			if c.name == "Swap" {
				continue
			}
			var at []int
			for i, v := range x[0] {
				if v != v {
					at = append(at, i)
				}
			}
			want := "[3 20 39]"
			switch c.name {
			case "Clamp":
				want = "[20]"
			}
			if got := fmt.Sprint(at); got != want {
				t.Errorf("%s: NaN at %v, want %v", c.name, got, want)
			}
		}
	})
}

// TestRowsAgreeWithOracle: steps of touched rows, the others left alone.
func TestRowsAgreeWithOracle(t *testing.T) {
	ps := pools(t)
	defer func(old isa) { useISA = old }(useISA)
	adam := AdamStep{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, Bias1: 0.19, Bias2: 0.0199, GradScale: -0.7}
	sgd := SGDStep{LR: 0.1, GradScale: 0.7}
	adagrad := AdagradStep{LR: 0.1, Eps: 1e-8, GradScale: 0.7}
	type run func(p *work.Pool, x [5][]float32, ids []int64, rows []float32, width int)
	type oracle func(x [5]float64, g float64, touched bool) [5]float64
	cases := map[string]struct {
		run    run
		oracle oracle
	}{
		"adam": {func(p *work.Pool, x [5][]float32, ids []int64, rows []float32, width int) {
			AdamRows(p, x[0], x[2], x[3], ids, rows, width, adam)
		}, func(x [5]float64, g float64, touched bool) [5]float64 {
			if touched {
				g *= -0.7
				x[2] += 0.1 * (g - x[2])
				x[3] += 0.01 * (g*g - x[3])
				x[0] -= 0.01 * math.Sqrt(0.0199) / 0.19 * x[2] / (math.Sqrt(x[3]) + 1e-6)
			}
			return x
		}},
		"sgd": {func(p *work.Pool, x [5][]float32, ids []int64, rows []float32, width int) {
			SGDRows(p, x[0], ids, rows, width, sgd)
		}, func(x [5]float64, g float64, touched bool) [5]float64 {
			if touched {
				x[0] -= 0.1 * 0.7 * g
			}
			return x
		}},
		"adagrad": {func(p *work.Pool, x [5][]float32, ids []int64, rows []float32, width int) {
			AdagradRows(p, x[0], x[3], ids, rows, width, adagrad)
		}, func(x [5]float64, g float64, touched bool) [5]float64 {
			if touched {
				x[3] += 0.49 * g * g
				x[0] -= 0.1 * 0.7 * g / (math.Sqrt(x[3]) + 1e-8)
			}
			return x
		}},
	}
	for _, nesterov := range []bool{false, true} {
		s := SGDStep{LR: 0.1, Momentum: 0.9, Dampening: 0.2, Nesterov: nesterov, GradScale: 0.7}
		cases[fmt.Sprintf("momentum, nesterov %t", nesterov)] = struct {
			run    run
			oracle oracle
		}{func(p *work.Pool, x [5][]float32, ids []int64, rows []float32, width int) {
			SGDMomentumRows(p, x[0], x[2], ids, rows, width, s)
		}, func(x [5]float64, g float64, touched bool) [5]float64 {
			if !touched {
				g = 0
			}
			x[2] = 0.9*x[2] + 0.8*0.7*g
			d := x[2]
			if nesterov {
				d = 0.7*g + 0.9*x[2]
			}
			x[0] -= 0.1 * d
			return x
		}}
	}
	for name, c := range cases {
		for _, width := range []int{1, 16, 33, 300} {
			const numRows = 150
			n := numRows * width
			rng := rand.New(rand.NewPCG(testSeed, uint64(width)))
			start := optimizerState(rng, n)
			var ids []int64
			for i := range numRows {
				if rng.IntN(3) > 0 {
					ids = append(ids, int64(i))
				}
			}
			rows := uniform(rng, len(ids)*width, -1, 1)
			var want [5][]float32
			for k := portable; k <= bestISA; k++ {
				useISA = k
				for i, p := range ps {
					x, intact := guardedState(start)
					c.run(p, x, ids, rows, width)
					if !intact() {
						t.Fatalf("%s width=%d: wrote outside", name, width)
					}
					if want[0] == nil {
						want = x
					}
					for j := range x {
						mustEqualBits(t, fmt.Sprintf("%s width=%d %v, pool %d, array %d, seed %d", name, width, k, i, j, testSeed), x[j], want[j])
					}
				}
			}
			grads := make(map[int][]float32)
			for i, id := range ids {
				grads[int(id)] = rows[i*width : (i+1)*width]
			}
			for i := range n {
				var e [5]float64
				for j := range e {
					e[j] = float64(start[j][i])
				}
				g, touched := 0.0, false
				if row, ok := grads[i/width]; ok {
					g, touched = float64(row[i%width]), true
				}
				for j, o := range c.oracle(e, g, touched) {
					if got := float64(want[j][i]); !(math.Abs(got-o) <= 1e-6*(1+math.Abs(o))) {
						t.Fatalf("%s width=%d: element %d of array %d is %v, want %v", name, width, i, j, got, o)
					}
				}
			}
		}
	}
}
