// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

const testSeed = 7

// lengths covers every tail of 8 and 16 lanes, unrolled loops, several calls
// and several threads.
var lengths = []int{0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100, 127, 129, 1000, 4099, 16384, 70001}

func uniform(rng *rand.Rand, n int, lo, hi float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(lo + (hi-lo)*rng.Float64())
	}
	return x
}

// ulps is the distance of got from want in units of the float32 spacing at
// want, which for values below floor is that at floor.
func ulps(got float32, want, floor float64) float64 {
	if math.IsNaN(want) || math.IsNaN(float64(got)) {
		if math.IsNaN(want) && math.IsNaN(float64(got)) {
			return 0
		}
		return math.Inf(1)
	}
	if math.IsInf(float64(got), 0) || math.IsInf(float64(float32(want)), 0) {
		if float64(got) == float64(float32(want)) {
			return 0
		}
		return math.Inf(1)
	}
	scale := max(math.Abs(want), floor, 0x1p-126)
	spacing := math.Ldexp(1, math.Ilogb(scale)-23)
	return math.Abs(float64(got)-want) / spacing
}

// pools are the thread counts that results must not depend on.
func pools(t testing.TB) []*work.Pool {
	three := work.New(3)
	t.Cleanup(three.Close)
	return []*work.Pool{nil, work.New(1), three}
}

func mustEqualBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d of %d is %v (%#x), want %v (%#x)", what, i, len(want),
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// guarded returns a slice of n elements that starts off any alignment and is
// followed by a mark; intact checks that nobody wrote past its ends.
func guarded(n int) (s []float32, intact func() bool) {
	const mark = 12345.5
	whole := make([]float32, n+34)
	for i := range whole {
		whole[i] = mark
	}
	return whole[17 : 17+n : 17+n], func() bool {
		for i, v := range whole {
			if (i < 17 || i >= 17+n) && v != mark {
				return false
			}
		}
		return true
	}
}

var elementwiseTable = []struct {
	name   string
	call   func(p *work.Pool, dst, a, b []float32)
	oracle func(a, b float64) float64
	lo, hi float64 // of a; b is in ±3
	ulps   float64 // greatest error
	floor  float64 // magnitude below which the error is absolute
}{
	{"Add", Add, func(a, b float64) float64 { return a + b }, -9, 9, 0.5, 0},
	{"Sub", Sub, func(a, b float64) float64 { return a - b }, -9, 9, 0.5, 0},
	{"Mul", Mul, func(a, b float64) float64 { return a * b }, -9, 9, 0.5, 0},
	{"Div", Div, func(a, b float64) float64 { return a / b }, -9, 9, 0.5, 0},
	{"AddScalar", func(p *work.Pool, dst, a, _ []float32) { AddScalar(p, dst, a, 1.5) }, func(a, _ float64) float64 { return a + 1.5 }, -9, 9, 0.5, 0},
	{"MulScalar", func(p *work.Pool, dst, a, _ []float32) { MulScalar(p, dst, a, 1.25) }, func(a, _ float64) float64 { return a * 1.25 }, -9, 9, 0.5, 0},
	{"AddScaled", func(p *work.Pool, dst, a, b []float32) { AddScaled(p, dst, a, 0.3, b) }, func(a, b float64) float64 { return a + float64(float32(0.3))*b }, -9, 9, 0.5001, 0},
	{"Fill", func(p *work.Pool, dst, _, _ []float32) { Fill(p, dst, 2.5) }, func(_, _ float64) float64 { return 2.5 }, 0, 1, 0, 0},
	{"FillZero", func(p *work.Pool, dst, _, _ []float32) { Fill(p, dst, 0) }, func(_, _ float64) float64 { return 0 }, 0, 1, 0, 0},
	{"Copy", func(p *work.Pool, dst, a, _ []float32) { Copy(p, dst, a) }, func(a, _ float64) float64 { return a }, -9, 9, 0, 0},
	{"Exp", one(Exp), f1(math.Exp), -104, 89, 1.1, 0},
	{"Log", one(Log), f1(math.Log), 0, 1e4, 1.5, 0},
	{"LogNear1", one(Log), f1(math.Log), 0.5, 2, 1.5, 0},
	{"Tanh", one(Tanh), f1(math.Tanh), -12, 12, 2.75, 0},
	{"TanhSmall", one(Tanh), f1(math.Tanh), -0.3, 0.3, 2.75, 0},
	{"Erf", one(Erf), f1(math.Erf), -5, 5, 2, 0},
	{"ErfSmall", one(Erf), f1(math.Erf), -0.7, 0.7, 2, 0},
	{"Sqrt", one(Sqrt), f1(math.Sqrt), 0, 1e6, 0.5001, 0},
	{"Reciprocal", one(Reciprocal), func(a, _ float64) float64 { return 1 / a }, -9, 9, 0.5001, 0},
	{"Neg", one(Neg), func(a, _ float64) float64 { return -a }, -9, 9, 0, 0},
	{"ReLU", one(ReLU), func(a, _ float64) float64 { return max(a, 0) }, -9, 9, 0, 0},
	{"GELU", one(GELU), func(a, _ float64) float64 { return a * 0.5 * math.Erfc(-a/math.Sqrt2) }, -6, 6, 3, 0.25},
	{"GELUWide", one(GELU), func(a, _ float64) float64 { return a * 0.5 * math.Erfc(-a/math.Sqrt2) }, -100, 100, 3, 0.25},
	{"GELUTanh", one(GELUTanh), geluTanhOracle, -6, 6, 4, 0.25},
	{"GELUTanhWide", one(GELUTanh), geluTanhOracle, -100, 100, 4, 0.25},
	{"Sigmoid", one(Sigmoid), f1(logistic), -20, 20, 3, 0},
	{"SigmoidWide", one(Sigmoid), f1(logistic), -100, 100, 3, 1e-30},
	{"SiLU", one(SiLU), func(a, _ float64) float64 { return a * logistic(a) }, -20, 20, 3.5, 0.25},
	{"SiLUWide", one(SiLU), func(a, _ float64) float64 { return a * logistic(a) }, -200, 200, 3.5, 0.25},
	{"SigmoidBackward", SigmoidBackward, func(a, b float64) float64 { return a * (1 - a) * b }, 0, 1, 2, 0.01},
	{"SiLUBackward", SiLUBackward, func(a, b float64) float64 { return logistic(a) * (1 + a*(1-logistic(a))) * b }, -200, 200, 4, 0.5},
	{"Maximum", Maximum, math.Max, -9, 9, 0, 0},
	{"Minimum", Minimum, math.Min, -9, 9, 0, 0},
}

func one(f func(p *work.Pool, dst, a []float32)) func(p *work.Pool, dst, a, _ []float32) {
	return func(p *work.Pool, dst, a, _ []float32) { f(p, dst, a) }
}

func f1(f func(float64) float64) func(a, _ float64) float64 {
	return func(a, _ float64) float64 { return f(a) }
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func geluTanhOracle(a, _ float64) float64 {
	return 0.5 * a * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a)))
}

// TestElementwise holds every elementwise operation against its oracle in
// float64, for every length, thread count and instruction set, and checks that
// it may run in place.
func TestElementwise(t *testing.T) {
	ps := pools(t)
	lengths := lengths
	if testing.Short() {
		lengths = lengths[:len(lengths)-1]
	}
	forEachISA(t, func(t *testing.T) {
		for _, op := range elementwiseTable {
			t.Run(op.name, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(testSeed, 0))
				worst := 0.0
				for _, n := range lengths {
					a, b := uniform(rng, n, op.lo, op.hi), uniform(rng, n, -3, 3)
					dst, intact := guarded(n)
					op.call(nil, dst, a, b)
					for i, got := range dst {
						want := op.oracle(float64(a[i]), float64(b[i]))
						e := ulps(got, want, op.floor)
						if worst = max(worst, e); e > op.ulps {
							t.Fatalf("n=%d: element %d of (%v, %v) is %v, want %v: %.2f ulp off, %v allowed", n, i, a[i], b[i], got, want, e, op.ulps)
						}
					}
					if !intact() {
						t.Fatalf("n=%d: wrote outside dst", n)
					}
					for _, p := range ps[1:] {
						again := append([]float32(nil), a...)
						op.call(p, again, again, b)
						mustEqualBits(t, fmt.Sprintf("n=%d in place on %d threads", n, p.NumThreads()), again, dst)
					}
				}
				t.Logf("greatest error %.3f ulp", worst)
			})
		}
	})
}

// TestSpecialValues gives each function the values at the edges of its domain.
func TestSpecialValues(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, op := range []struct {
		name     string
		call     func(p *work.Pool, dst, a []float32)
		in, want []float64
	}{
		{"Exp", Exp, []float64{0, math.Copysign(0, -1), inf, -inf, nan, 200, -200, 88.7, -103.9}, []float64{1, 1, inf, 0, nan, inf, 0, float64(float32(math.Exp(float64(float32(88.7))))), 0x1p-149}},
		{"Log", Log, []float64{0, 1, inf, -1, nan, 0x1p-149, 0x1.8p-140, -inf}, []float64{-inf, 0, inf, nan, nan, math.Log(0x1p-149), math.Log(0x1.8p-140), nan}},
		{"Tanh", Tanh, []float64{0, inf, -inf, nan, 1e-30, 100, -100}, []float64{0, 1, -1, nan, 1e-30, 1, -1}},
		{"Erf", Erf, []float64{0, inf, -inf, nan, 100, -100}, []float64{0, 1, -1, nan, 1, -1}},
		{"Sqrt", Sqrt, []float64{0, inf, -1, nan}, []float64{0, inf, nan, nan}},
		{"ReLU", ReLU, []float64{0, inf, -inf, nan}, []float64{0, inf, 0, nan}},
		{"GELU", GELU, []float64{0, inf, -inf, nan, 1e20, -1e20, 3e38, -3e38}, []float64{0, inf, 0, nan, 1e20, 0, 3e38, 0}},
		{"GELUTanh", GELUTanh, []float64{0, inf, -inf, nan, 1e20, -1e20, 3e38, -3e38}, []float64{0, inf, 0, nan, 1e20, 0, 3e38, 0}},
		{"GELUBackward", withOnes(GELUBackward), []float64{0, inf, -inf, nan, 1e20, -1e20}, []float64{0.5, 1, 0, nan, 1, 0}},
		{"GELUTanhBackward", withOnes(GELUTanhBackward), []float64{0, inf, -inf, nan, 1e20, -1e20}, []float64{0.5, 1, 0, nan, 1, 0}},
	} {
		t.Run(op.name, func(t *testing.T) {
			forEachISA(t, func(t *testing.T) {
				for i, v := range op.in {
					// As a tail and inside a full vector.
					for _, n := range []int{1, 16, 64} {
						a := make([]float32, n)
						a[n/2] = float32(v)
						op.call(nil, a, a)
						if got := a[n/2]; ulps(got, float64(float32(op.want[i])), 0) > 2 {
							t.Errorf("of %v is %v, want %v", v, got, op.want[i])
						}
					}
				}
			})
		})
	}
}

func withOnes(f func(p *work.Pool, dst, x, g []float32)) func(p *work.Pool, dst, a []float32) {
	return func(p *work.Pool, dst, a []float32) {
		g := make([]float32, len(a))
		for i := range g {
			g[i] = 1
		}
		f(p, dst, a, g)
	}
}

// TestActivationGradients compares the backward kernels with central
// differences of the forward oracle.
func TestActivationGradients(t *testing.T) {
	ps := pools(t)
	for _, op := range []struct {
		name    string
		call    func(p *work.Pool, dst, x, g []float32)
		forward func(x float64) float64
		tol     float64
	}{
		{"ReLU", ReLUBackward, func(x float64) float64 { return max(x, 0) }, 1e-6},
		{"GELU", GELUBackward, func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) }, 5e-7},
		{"GELUTanh", GELUTanhBackward, func(x float64) float64 { return geluTanhOracle(x, 0) }, 5e-7},
	} {
		t.Run(op.name, func(t *testing.T) {
			forEachISA(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(testSeed, 1))
				for _, n := range lengths {
					x, g := uniform(rng, n, -6, 6), uniform(rng, n, -2, 2)
					dst, intact := guarded(n)
					op.call(nil, dst, x, g)
					for i := range dst {
						const h = 1e-5
						v := float64(x[i])
						if math.Abs(v) < 2*h {
							continue // the kink of ReLU
						}
						want := float64(g[i]) * (op.forward(v+h) - op.forward(v-h)) / (2 * h)
						if math.Abs(float64(dst[i])-want) > op.tol*(1+math.Abs(want)) {
							t.Fatalf("n=%d: the gradient at %v, times %v, is %v, want %v", n, x[i], g[i], dst[i], want)
						}
					}
					if !intact() {
						t.Fatalf("n=%d: wrote outside dst", n)
					}
					for _, p := range ps[1:] {
						again := append([]float32(nil), g...)
						op.call(p, again, x, again)
						mustEqualBits(t, "in place of g", again, dst)
					}
				}
			})
		})
	}
}

// shapes are rows and columns: narrow and wide, tails, one row, many rows.
var shapes = [][2]int{{1, 1}, {3, 1}, {1, 7}, {5, 8}, {4, 10}, {2, 16}, {7, 17}, {33, 31}, {64, 64}, {9, 65}, {17, 129}, {256, 10}, {300, 256}, {11, 1000}, {1, 40000}, {3, 33000}, {1000, 33}, {0, 5}}

// TestRowBroadcasts checks AddRow and MulRow.
func TestRowBroadcasts(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 2))
		for _, s := range shapes {
			rows, cols := s[0], s[1]
			a, row := uniform(rng, rows*cols, -3, 3), uniform(rng, cols, -3, 3)
			for _, p := range ps {
				sum, product := make([]float32, rows*cols), make([]float32, rows*cols)
				AddRow(p, sum, a, row, rows, cols)
				MulRow(p, product, a, row, rows, cols)
				for i := range a {
					if sum[i] != a[i]+row[i%cols] || product[i] != a[i]*row[i%cols] {
						t.Fatalf("%d×%d, element %d: %v and %v of %v and %v", rows, cols, i, sum[i], product[i], a[i], row[i%cols])
					}
				}
			}
		}
	})
}

// TestReductions checks the sums and maxima, and that they do not depend on
// the number of threads.
func TestReductions(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 3))
		for _, n := range lengths {
			x := uniform(rng, n, -3, 5)
			var sum, squares float64
			for _, v := range x {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
			for _, p := range ps {
				if got := Sum(p, x); !(math.Abs(float64(got)-sum) <= 1e-7*math.Abs(sum)+1e-12) {
					t.Fatalf("n=%d: Sum is %v, want %v", n, got, sum)
				}
				got := SumSquares(p, x)
				if !(math.Abs(got-squares) <= 1e-13*squares) {
					t.Fatalf("n=%d: SumSquares is %v, want %v", n, got, squares)
				}
				if first := SumSquares(ps[0], x); got != first {
					t.Fatalf("n=%d: SumSquares is %v on %d threads and %v on one", n, got, p.NumThreads(), first)
				}
			}
		}
		if got := SumSquares(nil, []float32{1e30, 1e30}); math.Abs(got-2e60) > 1e54 {
			t.Errorf("SumSquares of large values is %v: it must not overflow float32", got)
		}
		for _, s := range shapes {
			rows, cols := s[0], s[1]
			x := uniform(rng, rows*cols, -3, 3)
			start := uniform(rng, cols, -3, 3)
			var first [4][]float32
			for i, p := range ps {
				over, _ := guarded(cols)
				onto := append([]float32(nil), start...)
				rowSums, intact := guarded(rows)
				rowMax := make([]float32, rows)
				SumRows(p, over, x, rows, cols, false)
				SumRows(p, onto, x, rows, cols, true)
				SumCols(p, rowSums, x, rows, cols)
				MaxCols(p, rowMax, x, rows, cols)
				if !intact() {
					t.Fatalf("%d×%d: SumCols wrote outside dst", rows, cols)
				}
				for c := range cols {
					var want float64
					for r := range rows {
						want += float64(x[r*cols+c])
					}
					tol := 5e-7 * float64(rows+8)
					if !(math.Abs(float64(over[c])-want) <= tol && math.Abs(float64(onto[c])-want-float64(start[c])) <= tol) {
						t.Fatalf("%d×%d: SumRows of column %d is %v and %v, want %v and %v", rows, cols, c, over[c], onto[c], want, want+float64(start[c]))
					}
				}
				for r := range rows {
					want, top := 0.0, negInf
					for _, v := range x[r*cols : (r+1)*cols] {
						want += float64(v)
						top = max(top, v)
					}
					if !(math.Abs(float64(rowSums[r])-want) <= 1e-6*(1+math.Abs(want))) || rowMax[r] != top {
						t.Fatalf("%d×%d: row %d has sum %v and maximum %v, want %v and %v", rows, cols, r, rowSums[r], rowMax[r], want, top)
					}
				}
				all := [4][]float32{over, onto, rowSums, rowMax}
				if i == 0 {
					first = all
				}
				for k := range all {
					mustEqualBits(t, fmt.Sprintf("%d×%d, reduction %d by threads", rows, cols, k), all[k], first[k])
				}
			}
		}
	})
}

// TestMaximumKeepsNaN puts a NaN at every place of a row.
func TestMaximumKeepsNaN(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		nan := float32(math.NaN())
		for _, n := range []int{1, 5, 16, 37, 80} {
			for i := range n {
				x := make([]float32, n)
				x[i] = nan
				var got [1]float32
				MaxCols(nil, got[:], x, 1, n)
				if got[0] == got[0] {
					t.Fatalf("MaxCols of %d elements lost the NaN at %d", n, i)
				}
			}
		}
	})
}
