// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"strings"
	"testing"
)

// groupCases compute on rows in groups.
func groupCases(dev Device) []opCase {
	on := On(dev)
	chosen := on.FromInt64([]int64{2, 0, -1, 2, 0, 2, 1, -1, 2, 0}, 5, 2)
	places, _ := GroupRows(chosen, 3) // 0 has 3 rows, 1 has 1, 2 has 4
	host := []int{4, 0, -1, 5, 1, 6, 3, -1, 7, 2}
	// None of the rows has group 1, and the last two have no group.
	counts := on.FromInt64([]int64{2, 0, 3, 1})
	groupOf := []int{0, 0, 2, 2, 2, 3, -1, -1}
	linear := func(in []array) array {
		out := in[1].shape[1]
		return fromIndex([]int{8, out}, func(i []int) float64 {
			e, sum := groupOf[i[0]], 0.0
			if e < 0 {
				return 0
			}
			for k := range in[0].shape[1] {
				sum += in[0].at(i[0], k) * in[1].at(e, i[1], k)
			}
			if len(in) > 2 {
				sum += in[2].at(e, i[1])
			}
			return sum
		})
	}
	return []opCase{
		{
			name: "grouped linear", shapes: [][]int{{8, 3}, {4, 5, 3}},
			apply: func(in []*Tensor) *Tensor { return GroupedLinear(in[0], in[1], nil, counts) }, naive: linear,
		},
		{
			name: "grouped linear bias", shapes: [][]int{{8, 3}, {4, 5, 3}, {4, 5}},
			apply: func(in []*Tensor) *Tensor { return GroupedLinear(in[0], in[1], in[2], counts) }, naive: linear,
		},
		{
			name: "grouped linear transposed", shapes: [][]int{{8, 3}, {4, 3, 5}},
			apply: func(in []*Tensor) *Tensor { return GroupedLinear(in[0], in[1].Transpose(1, 2), nil, counts) },
			naive: func(in []array) array { return linear([]array{in[0], naivePermute(in[1], 0, 2, 1)}) },
		},
		{
			name: "spread rows", shapes: [][]int{{5, 3}}, apply: func(in []*Tensor) *Tensor { return SpreadRows(in[0], places, 10) },
			naive: func(in []array) array {
				return fromIndex([]int{10, 3}, func(i []int) float64 {
					if at := slices.Index(host, i[0]); at >= 0 {
						return in[0].at(at/2, i[1])
					}
					return 0
				})
			},
		},
		{
			name: "combine rows", shapes: [][]int{{8, 3}, {5, 2}}, apply: func(in []*Tensor) *Tensor { return CombineRows(in[0], places, in[1]) },
			naive: func(in []array) array {
				return fromIndex([]int{5, 3}, func(i []int) (sum float64) {
					for j := range 2 {
						if at := host[2*i[0]+j]; at >= 0 {
							sum += in[0].at(at, i[1]) * in[1].at(i[0], j)
						}
					}
					return sum
				})
			},
		},
		{
			name: "combine rows without scales", shapes: [][]int{{8, 3}}, apply: func(in []*Tensor) *Tensor { return CombineRows(in[0], places, nil) },
			naive: func(in []array) array {
				return fromIndex([]int{5, 3}, func(i []int) (sum float64) {
					for j := range 2 {
						if at := host[2*i[0]+j]; at >= 0 {
							sum += in[0].at(at, i[1])
						}
					}
					return sum
				})
			},
		},
	}
}

// TestGroupRows: places, counts, and what a limit leaves.
func TestGroupRows(t *testing.T) {
	groups := FromInt64([]int64{1, 0, 1, 1, -1, 3, 0, 1}, 4, 2)
	places, counts := GroupRows(groups, 4)
	if got, want := places.Int64s(), []int64{2, 0, 3, 4, -1, 6, 1, 5}; !slices.Equal(got, want) {
		t.Errorf("places %v, want %v", got, want)
	}
	if got, want := counts.Int64s(), []int64{2, 4, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}
	// Group 1 is the first choice of rows 0 and 1, and then the second one of row 1.
	limited := LimitGroups(groups, 4, 2)
	if got, want := limited.Int64s(), []int64{1, 0, 1, -1, -1, 3, 0, -1}; !slices.Equal(got, want) {
		t.Errorf("limited to %v, want %v", got, want)
	}
	if got := LimitGroups(groups, 4, 0).Int64s(); slices.Max(got) != -1 {
		t.Errorf("a limit of 0 leaves %v", got)
	}
}

// TestGroupedLinearInBFloat16 compares with one product for each group.
func TestGroupedLinearInBFloat16(t *testing.T) {
	g := NewGenerator(3)
	x, w := New(CPU(), Float32, 40, 24), New(CPU(), Float32, 3, 16, 24)
	g.Normal(x, 0, 1)
	g.Normal(w, 0, 1)
	counts := []int{9, 0, 31}
	run := func(product func(tp *Tape, x, w *Tensor) *Tensor) (out *Tensor, grads []*collector) {
		tp := NewTape(true)
		defer tp.Close()
		tp.SetAutocast(BFloat16)
		grads = []*collector{{shape: x.shape}, {shape: w.shape}}
		out = product(tp, tp.Watch(x, grads[0]), tp.Watch(w, grads[1])).Keep()
		if out.dtype != BFloat16 {
			t.Fatalf("the result is %v", out.dtype)
		}
		if err := out.To(Float32).Square().Sum().Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out, grads
	}
	got, gotGrads := run(func(tp *Tape, x, w *Tensor) *Tensor {
		return GroupedLinear(x, w, nil, FromInt64([]int64{9, 0, 31}))
	})
	want, wantGrads := run(func(tp *Tape, x, w *Tensor) *Tensor {
		var parts []*Tensor
		first := 0
		for e, n := range counts {
			parts = append(parts, Linear(x.Narrow(0, first, n), w.Select(0, e), nil))
			first += n
		}
		return Cat(0, parts...)
	})
	if !slices.Equal(got.Float32s(), want.Float32s()) {
		t.Error("the results differ")
	}
	for i := range gotGrads {
		compareValues(t, "gradient", gotGrads[i].grad.Float32s(), widen(wantGrads[i].grad.Float32s()), bf16Tolerance)
	}
}

// TestGroupsRefuseWhatDoesNotFit: errors name the group.
func TestGroupsRefuseWhatDoesNotFit(t *testing.T) {
	x, w := Zeros(4, 3), Zeros(2, 5, 3)
	for want, fn := range map[string]func(){
		"group 2 at position [1] is not one of the 2 groups": func() { GroupRows(FromInt64([]int64{0, 2}), 2) },
		"the count 4 of group 1 is negative, or more than":   func() { GroupedLinear(x, w, nil, FromInt64([]int64{1, 4})) },
		"the count -1 of group 0":                            func() { GroupedLinear(x, w, nil, FromInt64([]int64{-1, 4})) },
		"the counts must be int64[2]":                        func() { GroupedLinear(x, w, nil, FromInt64([]int64{1})) },
		"wants rows [n, in] and weights":                     func() { GroupedLinear(x, Zeros(2, 5, 4), nil, FromInt64([]int64{1, 1})) },
		"the bias must be float32[2 5]":                      func() { GroupedLinear(x, w, Zeros(5), FromInt64([]int64{1, 1})) },
		"wants places for the 4 rows":                        func() { SpreadRows(x, FromInt64([]int64{0, 1}, 2, 1), 4) },
		"the scales must be float32[2 1]":                    func() { CombineRows(x, FromInt64([]int64{0, 1}, 2, 1), Zeros(2)) },
		"no negative number of groups (3) or limit (-1)":     func() { LimitGroups(FromInt64([]int64{0, 1}, 2, 1), 3, -1) },
	} {
		func() {
			defer func() {
				if err, ok := recover().(*Error); !ok || !strings.Contains(err.Error(), want) {
					t.Errorf("%q: got %v", want, err)
				}
			}()
			fn()
		}()
	}
}
