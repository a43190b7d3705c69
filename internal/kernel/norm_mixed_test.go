// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// lowOrNot returns x as it is, or rounded to bfloat16: then x is rounded too.
func lowOrNot(low bool, x []float32) Mixed {
	if !low || x == nil {
		return Mixed{F32: x}
	}
	m := Mixed{BF16: make([]uint16, len(x))}
	ToBF16(nil, m.BF16, x)
	FromBF16(nil, x, m.BF16)
	return m
}

// floats returns the elements as float32.
func (m Mixed) floats() []float32 {
	if m.BF16 == nil {
		return m.F32
	}
	x := make([]float32, len(m.BF16))
	FromBF16(nil, x, m.BF16)
	return x
}

// TestNormsOfBF16 holds norms whose operands are bfloat16, all or some of them,
// against those of float32 on the rounded operands.
func TestNormsOfBF16(t *testing.T) {
	const eps = 1e-5
	ps := pools(t)
	forEachBF16(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 23))
		for _, m := range append(images, Images{2, 3, lowRun + 37}, Images{5, 4, 49}, Images{1, 2, 2*lowRun + 32}) {
			for mode := range 8 {
				relu, add := mode&1 != 0, mode&2 != 0
				lows := uint(0xff) // which operands are bfloat16
				if mode&4 != 0 {
					lows = uint(rng.IntN(256))
				}
				name := fmt.Sprintf("%v relu=%v add=%v lows=%08b", m, relu, add, lows)
				n := m.elems()
				make32 := func() []float32 { return make([]float32, n) }
				as := func(i int, x []float32) Mixed { return lowOrNot(lows>>i&1 != 0, x) }
				wideX, wideG := uniform(rng, n, 1, 4), uniform(rng, n, -1, 1)
				x, g := as(0, wideX), as(1, wideG)
				gamma, beta := uniform(rng, m.Channels, 0.5, 1.5), uniform(rng, m.Channels, -1, 1)
				var r Mixed
				var wideR []float32
				if add {
					wideR = uniform(rng, n, -2, 2)
					r = as(2, wideR)
				}
				run := func(p *work.Pool, x, r, g, y, dx, dr Mixed) (all [][]float32) {
					mean, rstd := make([]float32, m.Channels), make([]float32, m.Channels)
					BatchNorm(p, y, mean, rstd, x, gamma, beta, m, Fusion{r, relu}, RunningStats{}, eps)
					dgamma, dbeta := make([]float32, m.Channels), make([]float32, m.Channels)
					b := BatchNormGrads{
						DX: dx, DGamma: dgamma, DBeta: dbeta, G: g, X: x, Y: y, Mean: mean, RStd: rstd, Gamma: gamma, Beta: beta,
						ReLU: relu, Residual: add, Training: true,
					}
					if add && relu {
						b.DResidual = dr
					}
					BatchNormBackward(p, b, m)
					all = [][]float32{y.floats(), dx.floats(), mean, rstd, dgamma, dbeta, dr.floats()}
					BatchNormApply(p, y, mean, rstd, x, gamma, beta, m, Fusion{r, relu})
					return append(all, y.floats())
				}
				want := run(nil, f32(wideX), f32(wideR), f32(wideG), f32(make32()), f32(make32()), f32(make32()))
				var first [][]float32
				for i, p := range ps {
					got := run(p, x, r, g, as(3, make32()), as(4, make32()), as(5, make32()))
					for k, what := range []string{"y", "dx", "mean", "rstd", "dgamma", "dbeta", "dr", "y again"} {
						tolerance := 1e-5
						if k < 2 || k > 5 {
							tolerance = 1.0 / 256
						}
						mustBeNear(t, name+" "+what, got[k], widen(want[k]), tolerance)
					}
					if i == 0 {
						first = got
					}
					for k := range got {
						mustEqualBits(t, fmt.Sprintf("%s, result %d by threads", name, k), got[k], first[k])
					}
				}
				if add || relu || m.Channels%2 != 0 {
					continue
				}
				group := func(x, g, y, dx Mixed) [][]float32 {
					mean, rstd := make([]float32, 2*m.Num), make([]float32, 2*m.Num)
					GroupNorm(nil, y, mean, rstd, x, gamma, beta, m, 2, eps)
					dgamma, dbeta := make([]float32, m.Channels), make([]float32, m.Channels)
					GroupNormBackward(nil, dx, dgamma, dbeta, g, x, mean, rstd, gamma, m, 2)
					return [][]float32{y.floats(), dx.floats(), dgamma, dbeta}
				}
				wantGroup := group(f32(wideX), f32(wideG), f32(make32()), f32(make32()))
				for k, got := range group(x, g, as(3, make32()), as(4, make32())) {
					mustBeNear(t, fmt.Sprintf("%s, result %d of a group norm", name, k), got, widen(wantGroup[k]), 1.0/256)
				}
			}
		}
		// A NaN reaches all of its channel, an infinity too, and nothing else.
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			m := Images{1, 2, 40}
			wide := uniform(rng, m.elems(), -1, 1)
			wide[37] = bad
			x, y := lowOrNot(true, wide), lowOrNot(true, make([]float32, m.elems()))
			BatchNorm(nil, y, make([]float32, 2), make([]float32, 2), x, nil, nil, m, Fusion{}, RunningStats{}, eps)
			for i, v := range y.floats() {
				if (v != v) != (i < 40) {
					t.Errorf("element %d of a norm with %v in the first channel is %v", i, bad, v)
				}
			}
		}
	})
}
