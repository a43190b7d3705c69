// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// Moves and sums along a dim against plain loops, for every pool: the results
// have the same bits, whoever computed what.
func TestAlongADim(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 20))
		for _, s := range [][4]int{{1, 5, 7, 3}, {3, 40, 20, 130}, {700, 9, 30, 1}, {1, 20, 9000, 1}, {2, 3, 5, 5000}, {0, 1, 1, 1}, {2, 0, 3, 4}} {
			outer, n, size, inner := s[0], s[1], s[2], s[3]
			x, g := uniform(rng, outer*size*inner, -1, 1), uniform(rng, outer*n*inner, -1, 1)
			ids, index := make([]int64, n), make([]int64, outer*n*inner)
			for i := range ids {
				ids[i] = rng.Int64N(int64(size))
			}
			for i := range index {
				index[i] = rng.Int64N(int64(size))
			}
			selected, gathered := make([]int32, len(index)), make([]int32, len(index))
			words := make([]int32, len(x))
			for i, v := range x {
				words[i] = int32(math.Float32bits(v))
			}
			added, scattered := append([]float32(nil), x...), append([]float32(nil), x...)
			set, setWant := make([]int32, len(words)), append([]int32(nil), words...)
			sums := make([]float32, len(x))
			for p := range index {
				o, i, k := p/(n*inner), p/inner%n, p%inner
				at := func(id int64) int { return (o*size+int(id))*inner + k }
				selected[p], gathered[p] = words[at(ids[i])], words[at(index[p])]
				added[at(ids[i])] += g[p]
				scattered[at(index[p])] += g[p]
				setWant[at(index[p])] = int32(p)
			}
			for p := range x {
				o, i, k := p/(size*inner), p/inner%size, p%inner
				sum := 0.0
				for j := 0; j <= i; j++ {
					sum += float64(x[(o*size+j)*inner+k])
				}
				sums[p] = float32(sum)
			}
			counting := make([]int32, len(index))
			for i := range counting {
				counting[i] = int32(i)
			}
			for _, p := range ps {
				what := fmt.Sprint(s)
				gotWords := make([]int32, len(index))
				IndexSelect(p, gotWords, words, ids, outer, size, inner)
				mustEqual(t, "select "+what, gotWords, selected)
				GatherElems(p, gotWords, words, index, outer, n, size, inner)
				mustEqual(t, "gather "+what, gotWords, gathered)
				copy(set, words)
				ScatterElems(p, set, counting, index, outer, n, size, inner)
				mustEqual(t, "scatter "+what, set, setWant)
				got := append([]float32(nil), x...)
				IndexAdd(p, got, g, ids, outer, size, inner)
				mustEqualBits(t, "add "+what, got, added)
				got = append([]float32(nil), x...)
				ScatterAddElems(p, got, g, index, outer, n, size, inner)
				mustEqualBits(t, "scatter add "+what, got, scattered)
				CumSum[float32, float64](p, got, x, outer, size, inner, false)
				mustEqualBits(t, "cumsum "+what, got, sums)
				if bad := FindBadIndex(p, index, size); bad != -1 {
					t.Errorf("%v: index %d is called bad", s, bad)
				}
			}
		}
	})
}

func mustEqual[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: element %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func TestRuns(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 21))
		for _, s := range [][2]int{{1, 1}, {30, 1}, {20000, 2}, {500, 70}, {1, 200000}, {3, 150000}, {4, 0}} {
			runs, n := s[0], s[1]
			src, dst := uniform(rng, runs*(n+2), -1, 1), uniform(rng, runs*(n+3), -1, 1)
			want := append([]float32(nil), dst...)
			words, wantWords := make([]uint16, len(src)), make([]uint16, len(dst))
			for i := range words {
				words[i] = uint16(rng.Uint32())
			}
			for r := range runs {
				for i := range n {
					want[r*(n+3)+i] += src[r*(n+2)+i]
					wantWords[r*(n+3)+i] = words[r*(n+2)+i]
				}
			}
			for _, p := range ps {
				got, gotWords := append([]float32(nil), dst...), make([]uint16, len(dst))
				AddRuns(p, got, n+3, src, n+2, n, runs)
				mustEqualBits(t, fmt.Sprint("add ", s), got, want)
				CopyRuns(p, gotWords, n+3, words, n+2, n, runs)
				mustEqual(t, fmt.Sprint("copy ", s), gotWords, wantWords)
			}
		}
	})
}

func TestBadIndices(t *testing.T) {
	ids := make([]int64, 100_000)
	for _, at := range []int{99_999, 60_000, 59_999, 7} {
		ids[at] = -1
		for _, p := range pools(t) {
			if got := FindBadIndex(p, ids, 1); got != at {
				t.Errorf("first bad index at %d, want %d", got, at)
			}
		}
	}
}

// Bags and their gradients for every pool, against float64.
func TestBags(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 22))
		const numRows, numBags, width = 60, 700, 37
		table, g := uniform(rng, numRows*width, -1, 1), uniform(rng, numBags*width, -1, 1)
		b := Bags{Bounds: []int64{0}, Padding: 5}
		for range numBags {
			for range rng.IntN(6) {
				b.IDs = append(b.IDs, rng.Int64N(numRows))
			}
			b.Bounds = append(b.Bounds, int64(len(b.IDs)))
		}
		b.Weights = uniform(rng, len(b.IDs), -1, 1)
		sums, grads, dots := make([]float64, numBags*width), make([]float64, numRows*width), make([]float64, len(b.IDs))
		for bag := range numBags {
			for pos := b.Bounds[bag]; pos < b.Bounds[bag+1]; pos++ {
				id := int(b.IDs[pos])
				if int64(id) == b.Padding {
					continue
				}
				for c := range width {
					w := float64(b.Weights[pos])
					sums[bag*width+c] += w * float64(table[id*width+c])
					grads[id*width+c] += w * float64(g[bag*width+c])
					dots[pos] += float64(table[id*width+c]) * float64(g[bag*width+c])
				}
			}
		}
		var first [3][]float32
		for i, p := range ps {
			got := [3][]float32{make([]float32, len(sums)), make([]float32, len(grads)), make([]float32, len(dots))}
			SumBags(p, got[0], table, b, width, false)
			SumSegments(p, got[1], b.Rows(g, false), GroupIDs(b.IDs, b.Padding), width, true)
			BagWeights(p, got[2], table, g, b, width)
			for k, want := range [][]float64{sums, grads, dots} {
				for j, w := range want {
					if d := math.Abs(float64(got[k][j]) - w); !(d < 1e-5) {
						t.Fatalf("result %d, element %d is %v, want %v", k, j, got[k][j], w)
					}
				}
				if i > 0 {
					mustEqualBits(t, "another pool", got[k], first[k])
				}
			}
			first = got
		}
	})
}

// The gates of recurrent cells for every pool, against float64. What is beyond a
// strip of the backward pass is in it.
func TestRecurrentCells(t *testing.T) {
	ps := pools(t)
	forEachISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(testSeed, 23))
		sigmoid := func(x float32) float64 { return 1 / (1 + math.Exp(-float64(x))) }
		for _, s := range [][2]int{{1, 1}, {3, 7}, {40, 300}} {
			batch, hidden := s[0], s[1]
			n := batch * hidden
			sums, state, prev := uniform(rng, 4*n, -3, 3), uniform(rng, 3*n, -3, 3), uniform(rng, n, -1, 1)
			var first [][]float32
			for i, p := range ps {
				gates := append([]float32(nil), sums...)
				h, c, gru, gruGates := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, 4*n)
				LSTMCell(p, h, c, gates, prev, batch, hidden)
				GRUCell(p, gru, gruGates, sums[:3*n], state, prev, batch, hidden)
				for j := range n {
					at := func(x []float32, gate, gates int) float32 { return x[(j/hidden*gates+gate)*hidden+j%hidden] }
					wantC := sigmoid(at(sums, 1, 4))*float64(prev[j]) + sigmoid(at(sums, 0, 4))*math.Tanh(float64(at(sums, 2, 4)))
					wantH := sigmoid(at(sums, 3, 4)) * math.Tanh(wantC)
					z := sigmoid(at(sums, 1, 3) + at(state, 1, 3))
					cand := math.Tanh(float64(at(sums, 2, 3)) + sigmoid(at(sums, 0, 3)+at(state, 0, 3))*float64(at(state, 2, 3)))
					wantGRU := (1-z)*cand + z*float64(prev[j])
					for k, pair := range [][2]float64{{float64(c[j]), wantC}, {float64(h[j]), wantH}, {float64(gru[j]), wantGRU}} {
						if !(math.Abs(pair[0]-pair[1]) < 1e-6) {
							t.Fatalf("%v: result %d, element %d is %v, want %v", s, k, j, pair[0], pair[1])
						}
					}
				}
				dgates, dc := make([]float32, 4*n), append([]float32(nil), prev...)
				LSTMCellBackward(p, dgates, dc, state[:n], state[n:2*n], state[2*n:], dc, gates, c, prev, batch, hidden)
				dx, ds, dh := make([]float32, 3*n), make([]float32, 3*n), append([]float32(nil), prev...)
				GRUCellBackward(p, dx, ds, dh, state[:n], dh, gruGates, prev, batch, hidden)
				got := [][]float32{h, c, gru, dgates, dc, dx, ds, dh}
				for k := range got {
					if i > 0 {
						mustEqualBits(t, fmt.Sprintf("%v, result %d of another pool", s, k), got[k], first[k])
					}
				}
				first = got
			}
		}
	})
}
