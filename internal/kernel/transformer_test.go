// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

func rmsNormOracle(x, weight []float64, cols int, eps float64) []float64 {
	out := make([]float64, len(x))
	for lo := 0; lo < len(x); lo += cols {
		var squares float64
		for _, v := range x[lo : lo+cols] {
			squares += v * v / float64(cols)
		}
		for c, v := range x[lo : lo+cols] {
			out[lo+c] = v / math.Sqrt(squares+eps) * weight[c]
		}
	}
	return out
}

// rmsNormBackwardOracle is the textbook gradient in float64.
func rmsNormBackwardOracle(g, x, weight []float64, cols int, eps float64) (dx, dweight []float64) {
	dx, dweight = make([]float64, len(x)), make([]float64, cols)
	for lo := 0; lo < len(x); lo += cols {
		var squares, product float64
		for c, v := range x[lo : lo+cols] {
			squares += v * v / float64(cols)
			product += g[lo+c] * weight[c] * v / float64(cols)
		}
		r := 1 / math.Sqrt(squares+eps)
		for c, v := range x[lo : lo+cols] {
			dweight[c] += g[lo+c] * v * r
			dx[lo+c] = r * (g[lo+c]*weight[c] - v*r*r*product)
		}
	}
	return dx, dweight
}

func TestRMSNorm(t *testing.T) {
	const eps = 1e-6
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 21))
		for _, s := range shapes {
			rows, cols := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, cols)
			x, g := uniform(rng, rows*cols, -2, 3), uniform(rng, rows*cols, -1, 1)
			weight := uniform(rng, cols, 0.5, 1.5)
			var first [][]float32
			for i, p := range ps {
				dst, intact := guarded(rows * cols)
				rstd := make([]float32, rows)
				RMSNorm(p, dst, rstd, x, weight, rows, cols, eps)
				dx, dxIntact := guarded(rows * cols)
				dweight, dweightIntact := guarded(cols)
				RMSNormBackward(p, dx, dweight, g, x, rstd, weight, rows, cols)
				if !intact() || !dxIntact() || !dweightIntact() {
					t.Fatalf("%s: wrote outside a result", name)
				}
				mustBeNear(t, name+" forward", dst, rmsNormOracle(widen(x), widen(weight), cols, eps), 2e-6)
				wantX, wantWeight := rmsNormBackwardOracle(widen(g), widen(x), widen(weight), cols, eps)
				if cols > 1 {
					mustBeNear(t, name+" dx", dx, wantX, 5e-6)
				}
				mustBeNear(t, name+" dweight", dweight, wantWeight, 2e-6*math.Sqrt(float64(rows+1)))
				all := [][]float32{dst, rstd, dx, dweight}
				if i == 0 {
					first = all
				}
				for k := range all {
					mustEqualBits(t, fmt.Sprintf("%s, result %d by threads", name, k), all[k], first[k])
				}
				over := append([]float32(nil), g...)
				RMSNormBackward(p, over, nil, over, x, rstd, weight, rows, cols)
				mustEqualBits(t, name+" dx in place of g", over, dx)
			}
		}
		x := []float32{3, -4}
		y := make([]float32, 2)
		RMSNorm(nil, y, make([]float32, 1), x, nil, 1, 2, 0)
		mustBeNear(t, "without weight", y, []float64{3 / math.Sqrt(12.5), -4 / math.Sqrt(12.5)}, 1e-6)
	})
}

func TestSwiGLU(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 22))
		for _, n := range []int{0, 1, 7, 16, 65, 50_000} {
			gate, up, g := uniform(rng, n, -12, 12), uniform(rng, n, -2, 2), uniform(rng, n, -1, 1)
			if n > 16 {
				gate[3], gate[4], gate[5] = 200, -200, 0
			}
			want, wantGate, wantUp := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range want {
				x, u, d := float64(gate[i]), float64(up[i]), float64(g[i])
				s := 1 / (1 + math.Exp(-x))
				want[i], wantGate[i], wantUp[i] = x*s*u, d*u*s*(1+x*(1-s)), d*x*s
			}
			for _, p := range ps {
				y, intact := guarded(n)
				SwiGLU(p, y, gate, up)
				dgate, gateIntact := guarded(n)
				dup, upIntact := guarded(n)
				SwiGLUBackward(p, dgate, dup, gate, up, g)
				if !intact() || !gateIntact() || !upIntact() {
					t.Fatalf("%d elements: wrote outside a result", n)
				}
				mustBeNear(t, "value", y, want, 1e-6)
				mustBeNear(t, "gradient of gate", dgate, wantGate, 1e-6)
				mustBeNear(t, "gradient of up", dup, wantUp, 1e-6)
			}
		}
		nan := float32(math.NaN())
		y := make([]float32, 2)
		SwiGLU(nil, y, []float32{nan, 1}, []float32{1, nan})
		if y[0] == y[0] || y[1] == y[1] {
			t.Errorf("NaN gives %v", y)
		}
	})
}

func TestRotate(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 23))
		for _, dim := range []int{2, 6, 32, 64, 70, 128} {
			s := AttentionShape{Batch: 2, Heads: 3, Time: 5, Dim: dim}
			half := dim / 2
			angles := uniform(rng, 2*5*half, -3, 3)
			r := Rotation{NumBatch: 2, NumTime: 5, NumHeads: 3, Dim: dim, Batch: 5 * half, Time: half}
			for _, a := range angles {
				r.Cos, r.Sin = append(r.Cos, float32(math.Cos(float64(a)))), append(r.Sin, float32(math.Sin(float64(a))))
			}
			rr := rand.New(rand.NewPCG(testSeed, 24))
			x := newHeads(rr, &s, 5, 3)
			for _, shared := range []bool{false, true} {
				if shared {
					r.Batch = 0
				}
				want := make([]float64, 0, 2*3*5*dim)
				for b := range 2 {
					for h := range 3 {
						for i := range 5 {
							pair := func(c int) (a, b2, cos, sin float64) {
								at := b*r.Batch + i*r.Time + c
								return x.at(&s, b, h, i, c), x.at(&s, b, h, i, c+half), float64(r.Cos[at]), float64(r.Sin[at])
							}
							for c := range half {
								a, b2, cos, sin := pair(c)
								want = append(want, a*cos-b2*sin)
							}
							for c := range half {
								a, b2, cos, sin := pair(c)
								want = append(want, b2*cos+a*sin)
							}
						}
					}
				}
				for _, p := range ps {
					y, back := newHeads(nil, &s, 5, 2), newHeads(nil, &s, 5, 0)
					Rotate(p, r, y, x)
					mustBeNear(t, fmt.Sprintf("dim %d", dim), y.dense(&s, 5), want, 1e-6)
					r.Back = true
					Rotate(p, r, back, y)
					r.Back = false
					mustBeNear(t, fmt.Sprintf("dim %d and back", dim), back.dense(&s, 5), widen(x.dense(&s, 5)), 1e-5)
				}
			}
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("short angles: no panic")
		}
	}()
	x := Heads{Data: make([]float32, 8), Head: 8}
	Rotate(nil, Rotation{NumBatch: 1, NumTime: 1, NumHeads: 1, Dim: 8, Cos: make([]float32, 4), Sin: make([]float32, 3)}, x, x)
}

// BenchmarkTransformer runs the kernels at the size of a small Llama's layer.
func BenchmarkTransformer(b *testing.B) {
	const rows, cols = 1024, 1024
	rng := rand.New(rand.NewPCG(testSeed, 25))
	x, y, g := uniform(rng, rows*cols, -2, 2), uniform(rng, rows*cols, -2, 2), uniform(rng, rows*cols, -1, 1)
	d, e := make([]float32, rows*cols), make([]float32, rows*cols)
	rstd, dw, weight := make([]float32, rows), make([]float32, cols), uniform(rng, cols, 0.5, 1.5)
	heads := Heads{Data: x, Batch: 128 * cols, Time: cols, Head: 64}
	turned := heads
	turned.Data = d
	angle := uniform(rng, 128*32, -1, 1)
	rotation := Rotation{NumBatch: 8, NumTime: 128, NumHeads: 16, Dim: 64, Cos: angle, Sin: angle, Time: 32}
	for _, k := range []struct {
		name    string
		streams int
		call    func(p *work.Pool)
	}{
		{"RMSNorm", 2, func(p *work.Pool) { RMSNorm(p, d, rstd, x, weight, rows, cols, 1e-6) }},
		{"RMSNormBackward", 3, func(p *work.Pool) { RMSNormBackward(p, d, dw, g, x, rstd, weight, rows, cols) }},
		{"SwiGLU", 3, func(p *work.Pool) { SwiGLU(p, d, x, y) }},
		{"SwiGLUBackward", 5, func(p *work.Pool) { SwiGLUBackward(p, d, e, x, y, g) }},
		{"Rotate", 2, func(p *work.Pool) { Rotate(p, rotation, turned, heads) }},
	} {
		b.Run(k.name, func(b *testing.B) {
			b.SetBytes(int64(4 * k.streams * rows * cols))
			for b.Loop() {
				k.call(nil)
			}
		})
	}
}
