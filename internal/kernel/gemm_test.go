// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// gemmOracle is the definition, in float64.
func gemmOracle(m, n, k int, alpha float32, a, b Matrix, beta float32, c []float32, ldc int, bias []float32) {
	// How far apart neighbours along the sum lie.
	stepA, stepB := 1, b.Stride
	if a.Trans {
		stepA = a.Stride
	}
	if b.Trans {
		stepB = 1
	}
	for i := range m {
		for j := range n {
			var s float64
			atA, atB := offset(a, i, 0), offset(b, 0, j)
			for l := range k {
				s += float64(a.Data[atA+l*stepA]) * float64(b.Data[atB+l*stepB])
			}
			s *= float64(alpha)
			if beta != 0 {
				s += float64(beta) * float64(c[i*ldc+j])
			}
			if bias != nil {
				s += float64(bias[j])
			}
			c[i*ldc+j] = float32(s)
		}
	}
}

// randomMatrix returns a rows×cols matrix with some unused elements after each
// row; they are NaN, so that a result that used one shows it.
func randomMatrix(r *rand.Rand, rows, cols int, trans bool) Matrix {
	if trans {
		rows, cols = cols, rows
	}
	x := Matrix{Stride: cols + r.IntN(3), Trans: trans}
	x.Data = make([]float32, max(0, (rows-1)*x.Stride+cols))
	for i := range x.Data {
		x.Data[i] = float32(math.NaN())
		if i%x.Stride < cols {
			x.Data[i] = float32(r.NormFloat64())
		}
	}
	return x
}

func testSizes(r *rand.Rand) [][3]int {
	sizes := [][3]int{
		{1, 1, 1}, {0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {12, 32, 16}, {6, 16, 8}, {13, 33, 17}, {7, 17, 9},
		{1, 300, 64}, {300, 1, 64}, {256, 10, 100}, {100, 97, 700}, {64, 64, 1100},
		{1, 10, 1024}, {2, 40, 1500}, {5, 3, 2000}, {40, 1, 1500}, {1, 39, 1501}, {33, 16, 600}, {90, 5, 1100},
	}
	for range howMany(60) {
		sizes = append(sizes, [3]int{1 + r.IntN(70), 1 + r.IntN(100), r.IntN(80)})
	}
	return sizes
}

func TestGemm(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, s := range testSizes(r) {
			for _, trans := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
				m, n, k := s[0], s[1], s[2]
				a, b := randomMatrix(r, m, k, trans[0]), randomMatrix(r, k, n, trans[1])
				c := randomMatrix(r, m, n, false)
				alpha, beta := []float32{1, -0.5}[r.IntN(2)], []float32{0, 1, 0.25}[r.IntN(3)]
				var bias []float32
				if r.IntN(2) == 0 {
					bias = randomMatrix(r, 1, n, false).Data[:n]
				}
				want := append([]float32(nil), c.Data...)
				gemmOracle(m, n, k, alpha, a, b, beta, want, c.Stride, bias)
				if beta == 0 {
					for i := range m {
						for j := range n {
							c.Data[i*c.Stride+j] = float32(math.NaN())
						}
					}
				}
				again := append([]float32(nil), c.Data...)
				Gemm(nil, m, n, k, alpha, a, b, beta, c.Data, c.Stride, bias)
				name := fmt.Sprintf("m %d, n %d, k %d, transposed %v, alpha %g, beta %g, bias %t", m, n, k, trans, alpha, beta, bias != nil)
				compare(t, name, c.Data, want, 2e-6*math.Sqrt(float64(k)+1)*4)
				Gemm(p, m, n, k, alpha, a, b, beta, again, c.Stride, bias)
				for i := range again {
					if math.Float32bits(again[i]) != math.Float32bits(c.Data[i]) {
						t.Fatalf("%s: element %d is %g with one thread, %g with three", name, i, c.Data[i], again[i])
					}
				}
			}
		}
	})
}

// TestGemmInParts takes sizes at which the shared operand is packed in parts,
// of k and of columns or rows, and checks some elements of each result.
func TestGemmInParts(t *testing.T) {
	if testing.Short() {
		t.Skip("billions of multiplications")
	}
	p := work.New(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(7, 8))
	for _, s := range [][3]int{{260, 160, 15000}, {150, 260, 15000}, {70, 60, 20000}, {60, 140, 50000}, {1, 17_000, 60}, {1, 21, 70_001}, {33, 1, 66_000}} {
		m, n, k := s[0], s[1], s[2]
		a, b := randomMatrix(r, m, k, r.IntN(2) == 0), randomMatrix(r, k, n, r.IntN(2) == 0)
		type element struct {
			i, j int
			want [1]float32
		}
		some := make([]element, 300)
		for at := range some {
			e := &some[at]
			e.i, e.j = r.IntN(m), r.IntN(n)
			row, col := a, b
			row.Data, col.Data = a.Data[offset(a, e.i, 0):], b.Data[offset(b, 0, e.j):]
			gemmOracle(1, 1, k, 1, row, col, 0, e.want[:], 1, nil)
		}
		forEachISA(t, func(t *testing.T) {
			c := make([]float32, m*n)
			Gemm(p, m, n, k, 1, a, b, 0, c, n, nil)
			for _, e := range some {
				compare(t, fmt.Sprintf("m %d, n %d, k %d: row %d, column %d", m, n, k, e.i, e.j), c[e.i*n+e.j:][:1], e.want[:], 1e-6*float64(k))
			}
		})
	}
}

func offset(x Matrix, i, j int) int {
	if x.Trans {
		i, j = j, i
	}
	return i*x.Stride + j
}

// compare fails unless got is within tolerance, absolute, of want. NaN equals NaN.
func compare(t *testing.T, name string, got, want []float32, tolerance float64) {
	t.Helper()
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if d <= tolerance || got[i] == want[i] || got[i] != got[i] && want[i] != want[i] {
			continue
		}
		t.Fatalf("%s: element %d is %g, want %g (tolerance %g)", name, i, got[i], want[i], tolerance)
	}
}

func TestGemmBatch(t *testing.T) {
	p := work.New(2)
	defer p.Close()
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		const batch, m, n, k = 5, 20, 35, 40
		for _, shared := range []bool{false, true} {
			a := Matrix{Data: make([]float32, batch*m*k), Stride: k}
			b := Matrix{Data: make([]float32, batch*n*k), Stride: k, Trans: true}
			for i := range a.Data {
				a.Data[i] = float32(r.NormFloat64())
			}
			for i := range b.Data {
				b.Data[i] = float32(r.NormFloat64())
			}
			batchB := n * k
			if shared {
				batchB = 0
			}
			c := make([]float32, batch*m*n)
			want := make([]float32, batch*m*n)
			for i := range batch {
				gemmOracle(m, n, k, 2, Matrix{a.Data[i*m*k:], k, false}, Matrix{b.Data[i*batchB:], k, true}, 0, want[i*m*n:], n, nil)
			}
			GemmBatch(p, batch, m, n, k, 2, a, m*k, b, batchB, 0, c, n, m*n)
			compare(t, fmt.Sprint("shared ", shared), c, want, 1e-4)
		}
	})
}

// TestGemmAllocatesNothing holds the kernels to scratch that they keep. Handing
// a loop to other threads costs the pool an allocation.
func TestGemmAllocatesNothing(t *testing.T) {
	p := work.New(2)
	defer p.Close()
	const n = 200
	x, c := Matrix{Data: make([]float32, n*n), Stride: n}, make([]float32, n*n)
	s := AttentionShape{Batch: 2, Heads: 2, Time: 50, KeyTime: 50, Dim: 32, Causal: true, Scale: 1}
	h, lse := newHeads(nil, &s, s.Time, 0), make([]float32, n)
	for _, pool := range []*work.Pool{nil, p} {
		loops := 0.0
		if pool != nil {
			loops = 1
		}
		for name, c := range map[string]struct {
			call func()
			want float64
		}{
			"Gemm":              {func() { Gemm(pool, n, n, n, 1, x, x, 0, c, n, nil) }, 2 * loops},
			"Gemm of a vector":  {func() { Gemm(pool, 1, n, n, 1, x, x, 0, c, n, nil) }, 2 * loops},
			"Gemm narrow":       {func() { Gemm(pool, n, 3, n, 1, x, x, 0, c, n, nil) }, 2 * loops},
			"Attention":         {func() { Attention(pool, s, h, h, h, h, lse) }, 2 + loops},
			"AttentionBackward": {func() { AttentionBackward(pool, s, h, h, h, h, h, h, h, h, lse) }, 2 + loops},
		} {
			if got := testing.AllocsPerRun(10, c.call); got > c.want {
				t.Errorf("%s with pool %t allocates %g times, want at most %g", name, pool != nil, got, c.want)
			}
		}
	}
}

func TestGemmChecksItsOperands(t *testing.T) {
	ok := make([]float32, 12)
	for name, call := range map[string]func(){
		"short A": func() {
			Gemm(nil, 3, 3, 4, 1, Matrix{Data: ok[:11], Stride: 4}, Matrix{Data: ok, Stride: 3}, 0, make([]float32, 9), 3, nil)
		},
		"short B": func() {
			Gemm(nil, 3, 3, 4, 1, Matrix{Data: ok, Stride: 4}, Matrix{Data: ok[:11], Stride: 3}, 0, make([]float32, 9), 3, nil)
		},
		"short C": func() {
			Gemm(nil, 3, 3, 4, 1, Matrix{Data: ok, Stride: 4}, Matrix{Data: ok, Stride: 3}, 0, make([]float32, 8), 3, nil)
		},
		"short bias": func() {
			Gemm(nil, 3, 3, 4, 1, Matrix{Data: ok, Stride: 4}, Matrix{Data: ok, Stride: 3}, 0, make([]float32, 9), 3, ok[:2])
		},
		"stride of C": func() {
			Gemm(nil, 3, 3, 4, 1, Matrix{Data: ok, Stride: 4}, Matrix{Data: ok, Stride: 3}, 0, make([]float32, 9), 2, nil)
		},
		"negative": func() {
			Gemm(nil, -1, 3, 4, 1, Matrix{Data: ok, Stride: 4}, Matrix{Data: ok, Stride: 3}, 0, nil, 3, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			call()
		})
	}
}
