// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// elements lists the elements of one dim that the rank at coordinate holds, in local order.
func elements(t *testing.T, n int, meshShape []int, placements []Placement, coordinate []int) []int {
	t.Helper()
	boxes, err := Boxes([]int{n}, meshShape, placements, coordinate)
	if err != nil {
		t.Fatal(err)
	}
	local, err := LocalShape([]int{n}, meshShape, placements, coordinate)
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, b := range boxes {
		if b.LocalStart[0] != len(out) || b.Shape[0] == 0 {
			t.Fatalf("boxes %v do not fill the local tensor in order", boxes)
		}
		for i := range b.Shape[0] {
			out = append(out, b.Start[0]+i)
		}
	}
	if len(out) != local[0] {
		t.Fatalf("boxes %v have %d elements, local shape is %v", boxes, len(out), local)
	}
	return out
}

func TestBoxesByHand(t *testing.T) {
	for _, c := range []struct {
		name       string
		n          int
		meshShape  []int
		placements []Placement
		want       [][]int // by rank
	}{
		{"trailing ranks may be empty", 5, []int{4}, []Placement{Shard(0)}, [][]int{{0, 1}, {2, 3}, {4}, nil}},
		{"nothing to hold", 0, []int{2}, []Placement{Shard(0)}, [][]int{nil, nil}},
		{"one element", 1, []int{2, 2}, []Placement{Shard(0), Shard(0)}, [][]int{{0}, nil, nil, nil}},
		{"nested", 8, []int{2, 2}, []Placement{Shard(0), Shard(0)}, [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
		{"nested, fewer than ranks", 2, []int{2, 2}, []Placement{Shard(0), Shard(0)}, [][]int{{0}, nil, {1}, nil}},
		{"tp cuts before dp", 8, []int{2, 2}, []Placement{StridedShard(0, 2), Shard(0)}, [][]int{{0, 1}, {4, 5}, {2, 3}, {6, 7}}},
		{"pieces that no axis makes", 8, []int{2, 2}, []Placement{StridedShard(0, 2), Replicate()}, [][]int{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}, {2, 3, 6, 7}}},
		{"pieces within a chunk", 8, []int{2, 2}, []Placement{Shard(0), StridedShard(0, 2)}, [][]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
		{"three axes, the last cuts first", 12, []int{2, 3, 2}, []Placement{StridedShard(0, 2), StridedShard(0, 2), Shard(0)},
			[][]int{{0}, {6}, {1}, {7}, {2}, {8}, {3}, {9}, {4}, {10}, {5}, {11}}},
		{"one piece is a plain shard", 4, []int{2}, []Placement{StridedShard(0, 1)}, [][]int{{0, 1}, {2, 3}}},
		{"an axis of one rank", 3, []int{1, 2}, []Placement{Shard(0), Shard(0)}, [][]int{{0, 1}, {2}}},
		{"no cut", 2, []int{3}, []Placement{Partial(dist.Sum)}, [][]int{{0, 1}, {0, 1}, {0, 1}}},
	} {
		for rank, want := range c.want {
			if got := elements(t, c.n, c.meshShape, c.placements, coordinateOf(c.meshShape, rank)); !slices.Equal(got, want) {
				t.Errorf("%s: rank %d holds %v, want %v", c.name, rank, got, want)
			}
		}
	}
}

// TestUnevenStridedShard: with sizes that do not divide every element keeps exactly one owner, and the
// rank that tp gave it to (pytorch/pytorch#168134).
func TestUnevenStridedShard(t *testing.T) {
	for n := range 40 {
		for dp := 1; dp <= 4; dp++ {
			for tp := 1; tp <= 4; tp++ {
				meshShape := []int{dp, tp}
				placements := []Placement{StridedShard(0, tp), Shard(0)}
				for j := range tp {
					var got []int
					for i := range dp {
						got = append(got, elements(t, n, meshShape, placements, []int{i, j})...)
					}
					// What tp alone gives to its rank j, and dp divides.
					want := elements(t, n, []int{tp}, []Placement{Shard(0)}, []int{j})
					if !slices.Equal(got, want) {
						t.Fatalf("%d elements, dp %d, tp %d: the ranks of tp %d hold %v, want %v", n, dp, tp, j, got, want)
					}
				}
				for i := range dp {
					var want []int
					for j := range tp {
						want = append(want, elements(t, n, meshShape, placements, []int{i, j})...)
					}
					got := elements(t, n, meshShape, []Placement{StridedShard(0, tp), Replicate()}, []int{i, 0})
					if !slices.Equal(got, want) {
						t.Fatalf("%d elements, dp %d, tp %d: without tp, dp %d holds %v, want %v", n, dp, tp, i, got, want)
					}
				}
			}
		}
	}
}

func TestLayoutErrors(t *testing.T) {
	for _, c := range []struct {
		shape      []int
		meshShape  []int
		placements []Placement
		want       string
	}{
		{[]int{4}, []int{2}, []Placement{Shard(1)}, "Shard(1) on axis 0: the tensor has 1 dims"},
		{[]int{4}, []int{2}, []Placement{Shard(-1)}, "Shard(-1) on axis 0: the tensor has 1 dims"},
		{[]int{4}, []int{2, 2}, []Placement{Shard(0)}, "2 axes, and there are 1 placements"},
		{[]int{4}, []int{2}, []Placement{StridedShard(0, 0)}, "number of pieces"},
		{[]int{4}, []int{2}, []Placement{Partial(dist.BAnd)}, "sum, avg, min, max or product"},
		{[]int{4}, []int{0}, []Placement{Shard(0)}, "axis 0 has the size 0"},
		{[]int{-4}, []int{2}, []Placement{Shard(0)}, "dim 0 has the size -4"},
		{[]int{4}, []int{2, 2}, []Placement{Partial(dist.Sum), Partial(dist.Max)}, "Partial(sum) on axis 0: another axis is Partial(max)"},
		{[]int{1 << 40, 1 << 40}, []int{2}, []Placement{Shard(0)}, "dim 1 has the size"},
		{[]int{4}, []int{2, 3}, []Placement{StridedShard(0, 2), Shard(0)}, "StridedShard(0, 2) on axis 0: the later axes cut the dim into [3] pieces"},
	} {
		err := Check(c.shape, c.meshShape, c.placements)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v of %v over %v: error %v, want %q", c.placements, c.shape, c.meshShape, err, c.want)
		}
	}
}

func TestPlacementNames(t *testing.T) {
	for want, p := range map[string]Placement{
		"Replicate": {}, "Shard(0)": Shard(0), "Shard(2)": StridedShard(2, 1), "StridedShard(0, 4)": StridedShard(0, 4),
		"Partial(sum)": Partial(dist.Sum), "Partial(max)": Partial(dist.Max), "Varying": Varying(),
	} {
		if got := fmt.Sprint(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if Shard(0) != StridedShard(0, 1) || Shard(0) == Replicate() || Partial(dist.Sum) == Replicate() || Shard(0) == StridedShard(0, 2) {
		t.Error("placements do not compare")
	}
}

// FuzzBoxes: whatever the arguments, Boxes returns an error or a partition: each element is held by
// as many ranks as the axes that do not cut have, and each rank's boxes fill its local tensor.
func FuzzBoxes(f *testing.F) {
	f.Add([]byte{5, 4}, []byte{2, 2}, []byte{1, 6})
	f.Add([]byte{7}, []byte{3, 2}, []byte{8, 1})
	f.Add([]byte{0, 3}, []byte{4}, []byte{2})
	f.Add([]byte{1}, []byte{2, 2, 2}, []byte{1, 0, 15})
	f.Fuzz(func(t *testing.T, sizes, axes, codes []byte) {
		if len(sizes) > 3 || len(axes) > 3 || len(codes) > 3 {
			return
		}
		var shape, meshShape []int
		for _, n := range sizes {
			shape = append(shape, int(n%16))
		}
		for _, n := range axes {
			meshShape = append(meshShape, int(n%6))
		}
		var placements []Placement
		for _, c := range codes {
			switch dim, pieces := int(c/5%4), int(c/20); c % 5 {
			case 0:
				placements = append(placements, Replicate())
			case 1, 2:
				placements = append(placements, Shard(dim))
			case 3:
				placements = append(placements, StridedShard(dim, pieces))
			case 4:
				placements = append(placements, Partial(dist.ReduceOp(pieces)))
			}
		}
		if Check(shape, meshShape, placements) != nil {
			return
		}
		copies := 1
		for a, p := range placements {
			if _, cut := p.IsShard(); !cut {
				copies *= meshShape[a]
			}
		}
		numbers := make([]float64, product(shape))
		for i := range numbers {
			numbers[i] = float64(i)
		}
		held := make([]int, len(numbers))
		for r := range product(meshShape) {
			for _, e := range localOf(t, numbers, shape, meshShape, placements, coordinateOf(meshShape, r)) {
				held[int(e)]++
			}
		}
		for e, n := range held {
			if n != copies {
				t.Fatalf("%v of %v over %v: element %d is held %d times, want %d", placements, shape, meshShape, e, n, copies)
			}
		}
	})
}
