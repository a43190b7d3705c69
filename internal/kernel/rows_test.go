// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// difference is the numerical derivative of f by x[i], in float64.
func difference(f func() float64, x []float64, i int) float64 {
	const h = 1e-5
	old := x[i]
	x[i] = old + h
	up := f()
	x[i] = old - h
	down := f()
	x[i] = old
	return (up - down) / (2 * h)
}

func widen(x []float32) []float64 {
	w := make([]float64, len(x))
	for i, v := range x {
		w[i] = float64(v)
	}
	return w
}

func layerNormOracle(x, gamma, beta []float64, cols int, eps float64) []float64 {
	out := make([]float64, len(x))
	for lo := 0; lo < len(x); lo += cols {
		row := x[lo : lo+cols]
		var mean, variance float64
		for _, v := range row {
			mean += v / float64(cols)
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(cols)
		}
		for c, v := range row {
			out[lo+c] = (v-mean)/math.Sqrt(variance+eps)*gamma[c] + beta[c]
		}
	}
	return out
}

// layerNormBackwardOracle is the textbook gradient in float64; finite
// differences confirm it on small shapes.
func layerNormBackwardOracle(g, x, gamma []float64, cols int, eps float64) (dx, dgamma, dbeta []float64) {
	dx, dgamma, dbeta = make([]float64, len(x)), make([]float64, cols), make([]float64, cols)
	ones, zeros := make([]float64, cols), make([]float64, cols)
	for c := range ones {
		ones[c] = 1
	}
	xhat := layerNormOracle(x, ones, zeros, cols, eps)
	for lo := 0; lo < len(x); lo += cols {
		var mean, variance, c1, c2 float64
		for c := range cols {
			mean += x[lo+c] / float64(cols)
		}
		for c := range cols {
			variance += (x[lo+c] - mean) * (x[lo+c] - mean) / float64(cols)
			c1 += g[lo+c] * gamma[c] / float64(cols)
			c2 += g[lo+c] * gamma[c] * xhat[lo+c] / float64(cols)
			dgamma[c] += g[lo+c] * xhat[lo+c]
			dbeta[c] += g[lo+c]
		}
		for c := range cols {
			dx[lo+c] = (g[lo+c]*gamma[c] - c1 - xhat[lo+c]*c2) / math.Sqrt(variance+eps)
		}
	}
	return dx, dgamma, dbeta
}

func mustBeNear(t *testing.T, what string, got []float32, want []float64, tol float64) {
	t.Helper()
	for i, w := range want {
		if !(math.Abs(float64(got[i])-w) <= tol*(1+math.Abs(w))) {
			t.Fatalf("%s: element %d is %v, want %v (tolerance %v)", what, i, got[i], w, tol)
		}
	}
}

func TestLayerNorm(t *testing.T) {
	const eps = 1e-5
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 5))
		for _, s := range shapes {
			rows, cols := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, cols)
			// An offset of a hundred deviations: a one-pass variance would fail.
			x := uniform(rng, rows*cols, 98, 102)
			g := uniform(rng, rows*cols, -1, 1)
			gamma, beta := uniform(rng, cols, 0.5, 1.5), uniform(rng, cols, -1, 1)
			wide := widen(x)
			var first [][]float32
			for i, p := range ps {
				dst, intact := guarded(rows * cols)
				mean, rstd := make([]float32, rows), make([]float32, rows)
				LayerNorm(p, dst, mean, rstd, x, gamma, beta, rows, cols, eps)
				if !intact() {
					t.Fatalf("%s: wrote outside dst", name)
				}
				mustBeNear(t, name+" forward", dst, layerNormOracle(wide, widen(gamma), widen(beta), cols, eps), 3e-5)
				dx, dxIntact := guarded(rows * cols)
				dgamma, dbeta := make([]float32, cols), make([]float32, cols)
				LayerNormBackward(p, dx, dgamma, dbeta, g, x, mean, rstd, gamma, rows, cols)
				if !dxIntact() {
					t.Fatalf("%s: wrote outside dx", name)
				}
				wantX, wantGamma, wantBeta := layerNormBackwardOracle(widen(g), wide, widen(gamma), cols, eps)
				// A row of one column divides by √eps, which magnifies rounding.
				if cols > 1 {
					mustBeNear(t, name+" dx", dx, wantX, 5e-5)
				}
				mustBeNear(t, name+" dgamma", dgamma, wantGamma, 1e-5*math.Sqrt(float64(rows+1)))
				mustBeNear(t, name+" dbeta", dbeta, wantBeta, 1e-6*math.Sqrt(float64(rows+1)))
				all := [][]float32{dst, mean, rstd, dx, dgamma, dbeta}
				if i == 0 {
					first = all
				}
				for k := range all {
					mustEqualBits(t, fmt.Sprintf("%s, result %d by threads", name, k), all[k], first[k])
				}
				// In place, and with parts left out.
				same := append([]float32(nil), x...)
				LayerNorm(p, same, mean, rstd, same, gamma, beta, rows, cols, eps)
				mustEqualBits(t, name+" in place", same, dst)
				over := append([]float32(nil), g...)
				LayerNormBackward(p, over, nil, nil, over, x, mean, rstd, gamma, rows, cols)
				mustEqualBits(t, name+" dx in place of g", over, dx)
				only := make([]float32, cols)
				LayerNormBackward(p, nil, only, nil, g, x, mean, rstd, gamma, rows, cols)
				mustEqualBits(t, name+" dgamma alone", only, dgamma)
			}
		}
	})
}

// TestLayerNormWithoutAffine leaves gamma and beta out.
func TestLayerNormWithoutAffine(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed, 6))
	const rows, cols = 5, 37
	x := uniform(rng, rows*cols, -2, 2)
	ones, zeros := make([]float32, cols), make([]float32, cols)
	Fill(nil, ones, 1)
	mean, rstd := make([]float32, rows), make([]float32, rows)
	with, without := make([]float32, rows*cols), make([]float32, rows*cols)
	LayerNorm(nil, with, mean, rstd, x, ones, zeros, rows, cols, 1e-5)
	LayerNorm(nil, without, mean, rstd, x, nil, nil, rows, cols, 1e-5)
	mustEqualBits(t, "forward", without, with)
	dwith, dwithout := make([]float32, rows*cols), make([]float32, rows*cols)
	LayerNormBackward(nil, dwith, nil, nil, x, x, mean, rstd, ones, rows, cols)
	LayerNormBackward(nil, dwithout, nil, nil, x, x, mean, rstd, nil, rows, cols)
	mustEqualBits(t, "backward", dwithout, dwith)
}

// TestBackwardOracles confirms the float64 gradients that the other tests use
// by finite differences.
func TestBackwardOracles(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed, 7))
	const rows, cols = 3, 5
	x, g := widen(uniform(rng, rows*cols, -2, 2)), widen(uniform(rng, rows*cols, -1, 1))
	gamma, beta := widen(uniform(rng, cols, 0.5, 1.5)), widen(uniform(rng, cols, -1, 1))
	dot := func(y []float64) (s float64) {
		for i := range y {
			s += y[i] * g[i]
		}
		return s
	}
	check := func(what string, got float64, f func() float64, x []float64, i int) {
		t.Helper()
		if want := difference(f, x, i); !(math.Abs(got-want) <= 1e-6*(1+math.Abs(want))) {
			t.Errorf("%s %d: %v, by differences %v", what, i, got, want)
		}
	}
	norm := func() float64 { return dot(layerNormOracle(x, gamma, beta, cols, 1e-5)) }
	dx, dgamma, dbeta := layerNormBackwardOracle(g, x, gamma, cols, 1e-5)
	for i := range x {
		check("dx", dx[i], norm, x, i)
	}
	for c := range cols {
		check("dgamma", dgamma[c], norm, gamma, c)
		check("dbeta", dbeta[c], norm, beta, c)
	}
	soft := func() float64 { return dot(softmaxOracle(x, cols)) }
	ds := softmaxBackwardOracle(softmaxOracle(x, cols), g, cols)
	for i := range x {
		check("softmax dx", ds[i], soft, x, i)
	}
	targets := []int64{1, IgnoreTarget, 4}
	loss := func() (total float64) {
		for r, v := range crossEntropyOracle(x, targets, cols) {
			total += v * g[r]
		}
		return total
	}
	dl := crossEntropyBackwardOracle(x, targets, g[:rows], cols)
	for i := range x {
		check("dlogits", dl[i], loss, x, i)
	}
}

func softmaxOracle(x []float64, cols int) []float64 {
	out := make([]float64, len(x))
	for lo := 0; lo < len(x); lo += cols {
		top, sum := math.Inf(-1), 0.0
		for _, v := range x[lo : lo+cols] {
			top = max(top, v)
		}
		for _, v := range x[lo : lo+cols] {
			sum += math.Exp(v - top)
		}
		for c, v := range x[lo : lo+cols] {
			out[lo+c] = math.Exp(v-top) / sum
		}
	}
	return out
}

func softmaxBackwardOracle(y, g []float64, cols int) []float64 {
	dx := make([]float64, len(y))
	for lo := 0; lo < len(y); lo += cols {
		var dot float64
		for i := lo; i < lo+cols; i++ {
			dot += y[i] * g[i]
		}
		for i := lo; i < lo+cols; i++ {
			dx[i] = y[i] * (g[i] - dot)
		}
	}
	return dx
}

func crossEntropyOracle(x []float64, targets []int64, classes int) []float64 {
	loss := make([]float64, len(targets))
	y := softmaxOracle(x, classes)
	for r, target := range targets {
		if target != IgnoreTarget {
			loss[r] = -math.Log(y[r*classes+int(target)])
		}
	}
	return loss
}

func crossEntropyBackwardOracle(x []float64, targets []int64, scale []float64, classes int) []float64 {
	d := softmaxOracle(x, classes)
	for r, target := range targets {
		for c := range classes {
			at := r*classes + c
			if target == IgnoreTarget {
				d[at] = 0
				continue
			}
			if c == int(target) {
				d[at]--
			}
			d[at] *= scale[r]
		}
	}
	return d
}

func TestSoftmax(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 8))
		for _, s := range shapes {
			rows, cols := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, cols)
			x, g := uniform(rng, rows*cols, -30, 90), uniform(rng, rows*cols, -1, 1)
			if cols > 2 && rows > 0 {
				x[1] = negInf // a masked element
			}
			want := softmaxOracle(widen(x), cols)
			var first, firstBack []float32
			for i, p := range ps {
				y, intact := guarded(rows * cols)
				Softmax(p, y, x, rows, cols)
				dx, dxIntact := guarded(rows * cols)
				SoftmaxBackward(p, dx, y, g, rows, cols)
				if !intact() || !dxIntact() {
					t.Fatalf("%s: wrote outside the result", name)
				}
				for i, w := range want {
					if e := ulps(y[i], w, 1e-3); e > 10 {
						t.Fatalf("%s: element %d is %v, want %v: %.1f ulp off", name, i, y[i], w, e)
					}
				}
				mustBeNear(t, name+" dx", dx, softmaxBackwardOracle(widen(y), widen(g), cols), 2e-6)
				if i == 0 {
					first, firstBack = y, dx
				}
				mustEqualBits(t, name+" by threads", y, first)
				mustEqualBits(t, name+" dx by threads", dx, firstBack)
				same := append([]float32(nil), x...)
				Softmax(p, same, same, rows, cols)
				mustEqualBits(t, name+" in place", same, y)
			}
		}
		nan := []float32{0, float32(math.NaN()), 0, 0, 0}
		Softmax(nil, nan, nan, 1, 5)
		for i, v := range nan {
			if v == v {
				t.Errorf("element %d of the softmax of a row with NaN is %v", i, v)
			}
		}
	})
}

func TestCrossEntropy(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 9))
		for _, s := range shapes {
			rows, classes := s[0], s[1]
			name := fmt.Sprintf("%d×%d", rows, classes)
			x := uniform(rng, rows*classes, -20, 90)
			targets := make([]int64, rows)
			for r := range targets {
				targets[r] = rng.Int64N(int64(classes))
				if r%5 == 3 {
					targets[r] = IgnoreTarget
				}
			}
			scale := uniform(rng, rows, -1, 1)
			constant := make([]float64, rows)
			for r := range constant {
				constant[r] = 0.25
			}
			wide := widen(x)
			want := crossEntropyOracle(wide, targets, classes)
			for _, p := range ps {
				loss, lossIntact := guarded(rows)
				lse, lseIntact := guarded(rows)
				CrossEntropy(p, loss, lse, x, targets, rows, classes)
				for r := range want {
					if !(math.Abs(float64(loss[r])-want[r]) <= 1e-6*(1+want[r])) {
						t.Fatalf("%s: the loss of row %d is %v, want %v", name, r, loss[r], want[r])
					}
				}
				d, intact := guarded(rows * classes)
				if rows > 1 {
					CrossEntropyBackward(p, d, x, lse, targets, scale, rows, classes)
					mustBeNear(t, name+" dlogits", d, crossEntropyBackwardOracle(wide, targets, widen(scale), classes), 1e-5)
				}
				CrossEntropyBackward(p, d, x, lse, targets, []float32{0.25}, rows, classes)
				mustBeNear(t, name+" dlogits with one scale", d, crossEntropyBackwardOracle(wide, targets, constant, classes), 1e-5)
				if !lossIntact() || !lseIntact() || !intact() {
					t.Fatalf("%s: wrote outside a result", name)
				}
			}
		}
		// Infinite logits: a masked class, a certain one, none possible.
		inf := float32(math.Inf(1))
		loss, lse := make([]float32, 3), make([]float32, 3)
		logits := []float32{1, negInf, 1, inf, 0, 0, negInf, negInf, negInf}
		CrossEntropy(nil, loss, lse, logits, []int64{0, 1, IgnoreTarget}, 3, 3)
		if !(math.Abs(float64(loss[0])-math.Ln2) <= 1e-6) || loss[1] != inf || loss[2] != 0 {
			t.Errorf("losses of infinite logits are %v", loss)
		}
	})
}

func TestEmbedding(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 10))
		for _, width := range []int{1, 7, 64, 129, 300} {
			const entries, count = 11, 257
			table, g := uniform(rng, entries*width, -1, 1), uniform(rng, count*width, -1, 1)
			ids := make([]int64, count)
			for i := range ids {
				ids[i] = rng.Int64N(entries)
			}
			start := uniform(rng, entries*width, -1, 1)
			want := append([]float32(nil), start...)
			for i, id := range ids {
				for c := range width {
					want[int(id)*width+c] += g[i*width+c]
				}
			}
			for _, p := range ps {
				dst := make([]float32, count*width)
				Embedding(p, dst, table, ids, width)
				for i := range dst {
					if w := table[int(ids[i/width])*width+i%width]; dst[i] != w {
						t.Fatalf("width %d: element %d is %v, want %v", width, i, dst[i], w)
					}
				}
				d := append([]float32(nil), start...)
				EmbeddingBackward(p, d, g, ids, width)
				mustEqualBits(t, fmt.Sprintf("width %d", width), d, want)
			}
		}
	})
}
