// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// images are shapes with tails of every kind, and planes of several calls.
var images = []Images{{1, 1, 2}, {2, 3, 1}, {3, 2, 7}, {2, 5, 49}, {4, 17, 64}, {2, 3, callElems + 21}, {1, 40, 1000}}

func f32(x []float32) Mixed { return Mixed{F32: x} }

// batchNormOracle is the norm and its gradients in float64, from the textbook.
type batchNormOracle struct {
	y, mean, variance       []float64
	dx, dr, dgamma, dbeta   []float64
	runningMean, runningVar []float64
}

// Where computed is given, it says which elements a ReLU lets through: the sign
// of one that is nearly 0 is a matter of rounding.
func oracleBatchNorm(x, r, gamma, beta, g []float64, m Images, relu bool, computed []float32, eps, momentum float64) batchNormOracle {
	n := len(x)
	o := batchNormOracle{
		y: make([]float64, n), mean: make([]float64, m.Channels), variance: make([]float64, m.Channels),
		dx: make([]float64, n), dr: make([]float64, n), dgamma: make([]float64, m.Channels), dbeta: make([]float64, m.Channels),
		runningMean: make([]float64, m.Channels), runningVar: make([]float64, m.Channels),
	}
	channel := func(i int) int { return i / m.Plane % m.Channels }
	for i, v := range x {
		o.mean[channel(i)] += v / m.count()
	}
	for i, v := range x {
		d := v - o.mean[channel(i)]
		o.variance[channel(i)] += d * d / m.count()
	}
	sums, dots := make([]float64, m.Channels), make([]float64, m.Channels)
	hat := func(i int) float64 { return (x[i] - o.mean[channel(i)]) / math.Sqrt(o.variance[channel(i)]+eps) }
	for i := range x {
		c := channel(i)
		o.y[i] = hat(i)*gamma[c] + beta[c]
		if r != nil {
			o.y[i] += r[i]
		}
		o.dr[i] = g[i]
		if relu {
			o.y[i] = max(o.y[i], 0)
			if computed[i] <= 0 {
				o.dr[i] = 0
			}
		}
		sums[c] += o.dr[i]
		dots[c] += o.dr[i] * hat(i)
	}
	for i := range x {
		c := channel(i)
		o.dx[i] = gamma[c] / math.Sqrt(o.variance[c]+eps) * (o.dr[i] - sums[c]/m.count() - hat(i)*dots[c]/m.count())
	}
	for c := range sums {
		o.dgamma[c], o.dbeta[c] = dots[c], sums[c]
		o.runningMean[c] = (1-momentum)*2 + momentum*o.mean[c]
		o.runningVar[c] = (1-momentum)*3 + momentum*o.variance[c]*m.count()/(m.count()-1)
	}
	return o
}

func TestBatchNorm(t *testing.T) {
	const eps, momentum = 1e-5, 0.1
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 21))
		for _, m := range images {
			for mode := range 4 {
				relu, add := mode&1 != 0, mode&2 != 0
				name := fmt.Sprintf("%v relu=%v add=%v", m, relu, add)
				n := m.elems()
				// An offset of many deviations, which float32 sums would not survive. Few
				// elements may be so close that the rounding of their mean shows.
				low := 98.0
				if m.count() < 20 {
					low = -2
				}
				x, g := uniform(rng, n, low, low+4), uniform(rng, n, -1, 1)
				gamma, beta := uniform(rng, m.Channels, 0.5, 1.5), uniform(rng, m.Channels, -1, 1)
				var r []float32
				var wideR []float64
				if add {
					r = uniform(rng, n, -2, 2)
					wideR = widen(r)
				}
				computed, spare := make([]float32, n), make([]float32, 2*m.Channels)
				BatchNorm(nil, f32(computed), spare[:m.Channels], spare[m.Channels:], f32(x), gamma, beta, m, Fusion{f32(r), relu}, RunningStats{}, eps)
				want := oracleBatchNorm(widen(x), wideR, widen(gamma), widen(beta), widen(g), m, relu, computed, eps, momentum)
				var first [][]float32
				for i, p := range ps {
					y, intact := guarded(n)
					mean, rstd := make([]float32, m.Channels), make([]float32, m.Channels)
					running := RunningStats{make([]float32, m.Channels), make([]float32, m.Channels), momentum}
					Fill(nil, running.Mean, 2)
					Fill(nil, running.Var, 3)
					BatchNorm(p, f32(y), mean, rstd, f32(x), gamma, beta, m, Fusion{f32(r), relu}, running, eps)
					mustBeNear(t, name+" forward", y, want.y, 3e-5)
					mustBeNear(t, name+" running mean", running.Mean, want.runningMean, 1e-6)
					mustBeNear(t, name+" running variance", running.Var, want.runningVar, 1e-6)
					dx, dxIntact := guarded(n)
					dr, drIntact := guarded(n)
					dgamma, dbeta := make([]float32, m.Channels), make([]float32, m.Channels)
					b := BatchNormGrads{
						DX: f32(dx), DGamma: dgamma, DBeta: dbeta, G: f32(g), X: f32(x), Y: f32(y), Mean: mean, RStd: rstd, Gamma: gamma, Beta: beta,
						ReLU: relu, Residual: add, Training: true,
					}
					if add && relu {
						b.DResidual = f32(dr)
					}
					BatchNormBackward(p, b, m)
					mustBeNear(t, name+" dx", dx, want.dx, 1e-4)
					mustBeNear(t, name+" dgamma", dgamma, want.dgamma, 1e-4)
					mustBeNear(t, name+" dbeta", dbeta, want.dbeta, 1e-5)
					if b.DResidual.isSet() {
						mustBeNear(t, name+" dr", dr, want.dr, 0)
					}
					if !intact() || !dxIntact() || !drIntact() {
						t.Fatalf("%s: wrote outside a result", name)
					}
					all := [][]float32{y, mean, rstd, dx, dgamma, dbeta}
					if i == 0 {
						first = all
					}
					for k := range all {
						mustEqualBits(t, fmt.Sprintf("%s, result %d by threads", name, k), all[k], first[k])
					}
					// In two halves, as over ranks, and without the residual's gradient.
					sums := make([]float64, 2*m.Channels)
					BatchMoments(p, sums, f32(x), m)
					mean2, rstd2 := make([]float32, m.Channels), make([]float32, m.Channels)
					BatchStats(mean2, rstd2, sums, m.count(), RunningStats{}, eps)
					mustEqualBits(t, name+" mean in halves", mean2, mean)
					y2, dx2 := make([]float32, n), make([]float32, n)
					BatchNormApply(p, f32(y2), mean2, rstd2, f32(x), gamma, beta, m, Fusion{f32(r), relu})
					mustEqualBits(t, name+" forward in halves", y2, y)
					b.DX, b.DResidual = f32(dx2), Mixed{}
					BatchNormGradSums(p, sums, b, m)
					BatchNormGradApply(p, sums, m.count(), b, m)
					mustEqualBits(t, name+" dx in halves", dx2, dx)
				}
			}
		}
		x := []float32{1, 2, float32(math.NaN()), 4, 5, 6}
		y, mean, rstd := make([]float32, 6), make([]float32, 2), make([]float32, 2)
		BatchNorm(nil, f32(y), mean, rstd, f32(x), nil, nil, Images{1, 2, 3}, Fusion{ReLU: true}, RunningStats{}, eps)
		for i, v := range y {
			if (v != v) != (i < 3) {
				t.Errorf("element %d of a norm with NaN in the first channel is %v", i, v)
			}
		}
	})
}

// A group norm is a batch norm of one image with a channel a group, but for
// gamma and beta, which are by channel.
func TestGroupNorm(t *testing.T) {
	const eps = 1e-5
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 22))
		for _, m := range []Images{{2, 6, 1}, {3, 4, 7}, {1, 2, callElems + 5}, {2, 32, 50}} {
			for _, groups := range []int{1, 2, m.Channels} {
				name := fmt.Sprintf("%v in %d groups", m, groups)
				n := m.elems()
				x, g := uniform(rng, n, 8, 12), uniform(rng, n, -1, 1)
				gamma, beta := uniform(rng, m.Channels, 0.5, 1.5), uniform(rng, m.Channels, -1, 1)
				channel := func(i int) int { return i / m.Plane % m.Channels }
				plain := Images{1, m.Num * groups, m.Channels / groups * m.Plane}
				ones, zeros := make([]float64, plain.Channels), make([]float64, plain.Channels)
				for i := range ones {
					ones[i] = 1
				}
				scaled := widen(g)
				for i := range scaled {
					scaled[i] *= float64(gamma[channel(i)])
				}
				want := oracleBatchNorm(widen(x), nil, ones, zeros, scaled, plain, false, nil, eps, 0)
				wantY, wantGamma, wantBeta := make([]float64, n), make([]float64, m.Channels), make([]float64, m.Channels)
				for i, hat := range want.y {
					c := channel(i)
					wantY[i] = hat*float64(gamma[c]) + float64(beta[c])
					wantGamma[c] += hat * float64(g[i])
					wantBeta[c] += float64(g[i])
				}
				var first [][]float32
				for i, p := range ps {
					y, intact := guarded(n)
					dx, dxIntact := guarded(n)
					mean, rstd := make([]float32, plain.Channels), make([]float32, plain.Channels)
					GroupNorm(p, f32(y), mean, rstd, f32(x), gamma, beta, m, groups, eps)
					dgamma, dbeta := make([]float32, m.Channels), make([]float32, m.Channels)
					GroupNormBackward(p, f32(dx), dgamma, dbeta, f32(g), f32(x), mean, rstd, gamma, m, groups)
					mustBeNear(t, name+" forward", y, wantY, 3e-5)
					if plain.Plane > 1 { // one element divides by √eps, which magnifies rounding
						mustBeNear(t, name+" dx", dx, want.dx, 1e-4)
					}
					mustBeNear(t, name+" dgamma", dgamma, wantGamma, 1e-4)
					mustBeNear(t, name+" dbeta", dbeta, wantBeta, 1e-4)
					if !intact() || !dxIntact() {
						t.Fatalf("%s: wrote outside a result", name)
					}
					all := [][]float32{y, dx, dgamma, dbeta}
					if i == 0 {
						first = all
					}
					for k := range all {
						mustEqualBits(t, fmt.Sprintf("%s, result %d by threads", name, k), all[k], first[k])
					}
				}
			}
		}
	})
}
