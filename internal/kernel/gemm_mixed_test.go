// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// rounded16 returns a matrix with its elements rounded to bfloat16, as float32
// for the oracle, and as bfloat16.
func rounded16(x Matrix) (Matrix, Mixed) {
	half := Mixed{BF16: make([]uint16, len(x.Data)), Stride: x.Stride, Trans: x.Trans}
	portableToBF16(half.BF16, x.Data)
	x.Data = make([]float32, len(half.BF16))
	portableFromBF16(x.Data, half.BF16)
	return x, half
}

// operand16 returns a random matrix as GemmBF16 gets it, float32 or bfloat16,
// and as the oracle does.
func operand16(r *rand.Rand, rows, cols int, trans, half bool) (Mixed, Matrix) {
	x := randomMatrix(r, rows, cols, trans)
	want, asHalf := rounded16(x)
	if half {
		return asHalf, want
	}
	return mixed(x), want
}

// TestGemmBF16 checks every variant, layout and mixture of dtypes against the
// definition, where the result may be anything before when beta is 0, and one
// thread against three.
func TestGemmBF16(t *testing.T) {
	p := work.New(3)
	defer p.Close()
	forEachBF16(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 12))
		for _, s := range append(testSizes(r), [3]int{30, 50, 2100}, [3]int{70, 40, 2049}) {
			m, n, k := s[0], s[1], s[2]
			for i := range 4 {
				trans, halves := [2]bool{i&1 != 0, i&2 != 0}, [3]bool{r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0}
				a, wantA := operand16(r, m, k, trans[0], halves[0])
				b, wantB := operand16(r, k, n, trans[1], halves[1])
				c, want := operand16(r, m, n, false, halves[2])
				if !halves[2] {
					want.Data = append([]float32(nil), c.F32...)
				}
				alpha, beta := []float32{1, -0.5}[r.IntN(2)], []float32{0, 1, 0.25}[r.IntN(3)]
				var bias []float32
				if r.IntN(2) == 0 {
					bias = randomMatrix(r, 1, n, false).Data[:n]
				}
				gemmOracle(m, n, k, alpha, wantA, wantB, beta, want.Data, want.Stride, bias)
				if beta == 0 {
					for i := range m {
						for j := range n {
							c.set(i*c.Stride+j, float32(math.NaN()))
						}
					}
				}
				again := c
				again.F32, again.BF16 = append([]float32(nil), c.F32...), append([]uint16(nil), c.BF16...)
				if !halves[2] {
					again.BF16 = nil
				} else {
					again.F32 = nil
				}
				GemmBF16(nil, m, n, k, alpha, a, b, beta, c, bias)
				name := fmt.Sprintf("m %d, n %d, k %d, transposed %v, bfloat16 %v, alpha %g, beta %g, bias %t", m, n, k, trans, halves, alpha, beta, bias != nil)
				got := c.F32
				if halves[2] {
					got = make([]float32, len(c.BF16))
					portableFromBF16(got, c.BF16)
				}
				tolerance := 2e-6 * math.Sqrt(float64(k)+1) * 4
				for i := range want.Data {
					limit := tolerance
					if halves[2] { // half of a unit in the last place
						limit += math.Abs(float64(want.Data[i])) / 256
					}
					x, y := got[i], want.Data[i]
					if !(math.Abs(float64(x)-float64(y)) <= limit) && (x == x || y == y) {
						t.Fatalf("%s: element %d is %g, want %g (tolerance %g)", name, i, x, y, limit)
					}
				}
				GemmBF16(p, m, n, k, alpha, a, b, beta, again, bias)
				for i := range got {
					if x, y := c.at(i), again.at(i); math.Float32bits(x) != math.Float32bits(y) {
						t.Fatalf("%s: element %d is %g with one thread, %g with three", name, i, x, y)
					}
				}
			}
		}
	})
}

// TestGemmBF16RoundsOnce has sums over several blocks of k that a rounding
// between the blocks would lose.
func TestGemmBF16RoundsOnce(t *testing.T) {
	forEachBF16(t, func(t *testing.T) {
		const m, n, k = 5, 7, 5000
		a, b := make([]float32, m*k), make([]float32, k*n)
		for i := range a {
			a[i] = 1
		}
		for i := range b {
			b[i] = 2
		}
		// 640,000, then 5000 in parts that are less than half of a unit, 4096.
		for l := range k / 2 {
			for j := range n {
				b[l*n+j] = 256
			}
		}
		c := make([]uint16, m*n)
		GemmBF16(nil, m, n, k, 1, Mixed{F32: a, Stride: k}, Mixed{F32: b, Stride: n}, 0, Mixed{BF16: c, Stride: n}, nil)
		want := bf16(2500*256 + 2500*2)
		for i, x := range c {
			if x != want {
				t.Fatalf("element %d is %#x, want %#x", i, x, want)
			}
		}
	})
}

// TestGemmBF16NotFinite: NaN and infinities come out where they went in, and
// nowhere else.
func TestGemmBF16NotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	forEachBF16(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, k := range []int{1, 2, 33, 1025} {
			const m, n = 14, 35
			a, wantA := operand16(r, m, k, false, false)
			b, wantB := operand16(r, k, n, true, true)
			for i := range 3 { // rows 2, 5, 8 of A
				x := []float32{nan, inf, -inf}[i]
				a.F32[(2+3*i)*a.Stride+k-1], wantA.Data[(2+3*i)*a.Stride+k-1] = x, x
			}
			b.BF16[20*b.Stride], wantB.Data[20*b.Stride] = bf16(nan), nan
			c, want := make([]float32, m*n), make([]float32, m*n)
			gemmOracle(m, n, k, 1, wantA, wantB, 0, want, n, nil)
			GemmBF16(nil, m, n, k, 1, a, b, 0, Mixed{F32: c, Stride: n}, nil)
			compare(t, fmt.Sprint("k ", k), c, want, 1e-3)
		}
	})
}

func TestGemmBF16Batch(t *testing.T) {
	p := work.New(2)
	defer p.Close()
	forEachBF16(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		const batch, m, n, k = 5, 20, 35, 41
		a, wantA := operand16(r, batch*m, k, false, true)
		b, wantB := operand16(r, batch*n, k, false, false)
		b.Trans, wantB.Trans = true, true
		c, want := Mixed{BF16: make([]uint16, batch*m*n), Stride: n}, make([]float32, batch*m*n)
		for i := range batch {
			gemmOracle(m, n, k, 2, Matrix{wantA.Data[i*m*a.Stride:], a.Stride, false}, Matrix{wantB.Data[i*n*b.Stride:], b.Stride, true}, 0, want[i*m*n:], n, nil)
		}
		GemmBF16Batch(p, batch, m, n, k, 2, a, m*a.Stride, b, n*b.Stride, 0, c, m*n)
		for i := range want {
			compare(t, fmt.Sprint(i), []float32{c.at(i)}, want[i:i+1], 1e-4+math.Abs(float64(want[i]))/256)
		}
	})
}

// TestGemmBF16InParts is to GemmBF16 as TestGemmInParts is to Gemm: the shared
// operand is packed in parts.
func TestGemmBF16InParts(t *testing.T) {
	if testing.Short() || bestISA == portable {
		t.Skip("billions of multiplications")
	}
	p := work.New(2)
	defer p.Close()
	forEachBF16(t, func(t *testing.T) {
		if useISA != bestISA {
			return
		}
		r := rand.New(rand.NewPCG(13, 14))
		for i, s := range [][3]int{{500, 470, 9000}, {40, 60, 70_001}} {
			m, n, k := s[0], s[1], s[2]
			a, wantA := operand16(r, m, k, r.IntN(2) == 0, i%2 == 0)
			b, wantB := operand16(r, k, n, r.IntN(2) == 0, true)
			for _, c := range []Mixed{{F32: make([]float32, m*n), Stride: n}, {BF16: make([]uint16, m*n), Stride: n}} {
				GemmBF16(p, m, n, k, 1, a, b, 0, c, nil)
				for range 60 {
					i, j := r.IntN(m), r.IntN(n)
					var want [1]float32
					row, col := wantA, wantB
					row.Data, col.Data = wantA.Data[offset(wantA, i, 0):], wantB.Data[offset(wantB, 0, j):]
					gemmOracle(1, 1, k, 1, row, col, 0, want[:], 1, nil)
					tolerance := 1e-6 * float64(k)
					if c.BF16 != nil {
						tolerance += math.Abs(float64(want[0])) / 256
					}
					compare(t, fmt.Sprintf("m %d, n %d, k %d: row %d, column %d", m, n, k, i, j), []float32{c.at(i*n + j)}, want[:], tolerance)
				}
			}
		}
	})
}
