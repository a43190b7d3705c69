// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// lowUniform returns numbers that bfloat16 has, in both formats.
func lowUniform(rng *rand.Rand, n int, lo, hi float64) ([]uint16, []float32) {
	wide, low := uniform(rng, n, lo, hi), make([]uint16, n)
	ToBF16(nil, low, wide)
	FromBF16(nil, wide, low)
	return low, wide
}

func fromLow(x []uint16) []float32 {
	wide := make([]float32, len(x))
	FromBF16(nil, wide, x)
	return wide
}

// lowTolerance is that of results rounded to bfloat16.
const lowTolerance = 1.0 / 256

var lowShapes = [][2]int{{1, 1}, {3, 7}, {5, 33}, {40, 256}, {2, 5000}, {700, 64}, {1, 9000}, {300, 513}}

func TestLayerNormBF16(t *testing.T) {
	const eps = 1e-5
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 31))
		for _, s := range lowShapes {
			rows, cols := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, cols)
			x, wide := lowUniform(rng, rows*cols, -2, 3)
			g, wideG := lowUniform(rng, rows*cols, -1, 1)
			gamma, beta := uniform(rng, cols, -1, 2), uniform(rng, cols, -1, 1)
			want := layerNormOracle(widen(wide), widen(gamma), widen(beta), cols, eps)
			wantDx, wantDgamma, wantDbeta := layerNormBackwardOracle(widen(wideG), widen(wide), widen(gamma), cols, eps)
			var first, firstGrads []float32
			for _, p := range ps {
				y, dx := make([]uint16, rows*cols), make([]uint16, rows*cols)
				mean, rstd := make([]float32, rows), make([]float32, rows)
				dgamma, dbeta := make([]float32, cols), make([]float32, cols)
				LayerNormBF16(p, y, mean, rstd, x, gamma, beta, rows, cols, eps)
				LayerNormBackwardBF16(p, dx, dgamma, dbeta, g, x, mean, rstd, gamma, rows, cols)
				got, grads := fromLow(y), append(append(fromLow(dx), dgamma...), dbeta...)
				if first == nil {
					first, firstGrads = got, grads
					mustBeNear(t, name, got, want, lowTolerance)
					if cols > 1 { // else the variance is 0
						mustBeNear(t, name+" dx", fromLow(dx), wantDx, lowTolerance)
					}
					mustBeNear(t, name+" dgamma", dgamma, wantDgamma, 1e-4)
					mustBeNear(t, name+" dbeta", dbeta, wantDbeta, 1e-4)
				}
				mustEqualBits(t, name+" on several threads", got, first)
				mustEqualBits(t, name+" gradients on several threads", grads, firstGrads)
			}
		}
	})
}

func TestCrossEntropyBF16(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 32))
		for _, s := range lowShapes {
			rows, classes := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, classes)
			x, wide := lowUniform(rng, rows*classes, -20, 90)
			targets := make([]int64, rows)
			for r := range targets {
				targets[r] = rng.Int64N(int64(classes))
				if r%5 == 3 {
					targets[r] = IgnoreTarget
				}
			}
			scale := uniform(rng, rows, -1, 1)
			want := crossEntropyOracle(widen(wide), targets, classes)
			wantD := crossEntropyBackwardOracle(widen(wide), targets, widen(scale), classes)
			var first []float32
			for _, p := range ps {
				loss, lse, d := make([]float32, rows), make([]float32, rows), make([]uint16, rows*classes)
				CrossEntropyBF16(p, loss, lse, x, targets, rows, classes)
				CrossEntropyBackwardBF16(p, d, x, lse, targets, scale, rows, classes)
				got := append(append([]float32{}, loss...), fromLow(d)...)
				if first == nil {
					first = got
					mustBeNear(t, name+" loss", loss, want, 1e-5)
					mustBeNear(t, name+" gradient", fromLow(d), wantD, lowTolerance)
				}
				mustEqualBits(t, name+" on several threads", got, first)
			}
		}
	})
}

func TestSumRowsBF16(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 33))
		for _, s := range append(lowShapes, [2]int{0, 5}, [2]int{5000, 3}) {
			rows, cols := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, cols)
			x, wide := lowUniform(rng, rows*cols, -1, 2)
			want := make([]float64, cols)
			for i, v := range wide {
				want[i%cols] += float64(v)
			}
			var first []float32
			for _, p := range ps {
				got := uniform(rng, cols, 0, 1)
				SumRowsBF16(p, got, x, rows, cols)
				if first == nil {
					first = got
					mustBeNear(t, name, got, want, 1e-5)
				}
				mustEqualBits(t, name+" on several threads", got, first)
			}
		}
	})
}

func TestSwiGLUBF16(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 34))
		for _, n := range []int{0, 1, 33, 5000, 70_001} {
			gate, wideGate := lowUniform(rng, n, -6, 6)
			up, wideUp := lowUniform(rng, n, -2, 2)
			g, wideG := lowUniform(rng, n, -1, 1)
			want, wantGate, wantUp := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range want {
				x, y, d := float64(wideGate[i]), float64(wideUp[i]), float64(wideG[i])
				s := 1 / (1 + math.Exp(-x))
				want[i], wantGate[i], wantUp[i] = x*s*y, d*y*s*(1+x*(1-s)), d*x*s
			}
			for _, p := range ps {
				y, dgate, dup := make([]uint16, n), make([]uint16, n), make([]uint16, n)
				SwiGLUBF16(p, y, gate, up)
				SwiGLUBackwardBF16(p, dgate, dup, gate, up, g)
				mustBeNear(t, "value", fromLow(y), want, lowTolerance)
				mustBeNear(t, "gradient of the gate", fromLow(dgate), wantGate, lowTolerance)
				mustBeNear(t, "gradient of up", fromLow(dup), wantUp, lowTolerance)
			}
		}
	})
}
