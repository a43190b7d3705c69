// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// dtypes have all sizes of elements.
var dtypes = []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16, tensor.Int64, tensor.Uint8}

// randomTensor returns a tensor of small numbers.
func randomTensor(rng *rand.Rand, dtype tensor.DType, shape ...int) *tensor.Tensor {
	data := make([]float32, numElems(shape))
	for i := range data {
		data[i] = float32(rng.NormFloat64())
		if !dtype.IsFloat() {
			data[i] = float32(rng.IntN(100))
		}
	}
	return tensor.FromFloat32(data, len(data)).Reshape(shape...).To(dtype)
}

// digestOf returns the digest of a whole tensor.
func digestOf(t *testing.T, x *tensor.Tensor) Digest {
	t.Helper()
	return digestOfPart(t, &Part{Local: x, Near: true})
}

func digestOfPart(t *testing.T, p *Part) Digest {
	t.Helper()
	ds, err := DigestAll([]*Part{nil, p})
	if err != nil {
		t.Fatal(err)
	}
	return ds[1]
}

// near reports whether two digests of the same elements differ only in rounding.
func near(a, b Digest) bool {
	return a.Elems == b.Elems && a.Sum == b.Sum && math.Abs(a.Norm()-b.Norm()) <= 1e-6*a.Norm() && a.apart(b) <= 2e-6*a.Norm()
}

// local returns what a rank holds of a tensor.
func local(x *tensor.Tensor, shape []int, boxes []mesh.Box) *tensor.Tensor {
	out := tensor.New(tensor.CPU(), x.DType(), shape...)
	for _, b := range boxes {
		from, into := x, out
		for d := range b.Shape {
			from, into = from.Narrow(d, b.Start[d], b.Shape[d]), into.Narrow(d, b.LocalStart[d], b.Shape[d])
		}
		into.CopyFrom(from)
	}
	return out
}

// The digests of the parts that the ranks of any mesh hold add up to that of the whole.
func TestDigestsOfPartsAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	draws := 300
	if testing.Short() {
		draws = 60
	}
	for range draws {
		shape := make([]int, rng.IntN(4))
		for d := range shape {
			shape[d] = 1 + rng.IntN(13)
		}
		if len(shape) > 0 && rng.IntN(4) == 0 {
			shape[len(shape)-1] = 1 + rng.IntN(9000) // more than a block
		}
		meshShape := []int{1 + rng.IntN(3), 1 + rng.IntN(3)}
		placements := make([]mesh.Placement, 2)
		for a := range placements {
			placements[a] = mesh.Replicate()
			if len(shape) > 0 && rng.IntN(3) > 0 {
				if placements[a] = mesh.Shard(rng.IntN(len(shape))); rng.IntN(3) == 0 {
					placements[a] = mesh.StridedShard(rng.IntN(len(shape)), 2)
				}
			}
		}
		if mesh.Check(shape, meshShape, placements) != nil {
			continue
		}
		x := randomTensor(rng, dtypes[rng.IntN(len(dtypes))], shape...)
		want := digestOf(t, x)
		var sum Digest
		for i := range meshShape[0] {
			for j := range meshShape[1] {
				if placements[0].IsReplicate() && i > 0 || placements[1].IsReplicate() && j > 0 {
					continue
				}
				boxes, err := mesh.Boxes(shape, meshShape, placements, []int{i, j})
				if err != nil {
					t.Fatal(err)
				}
				part, err := mesh.LocalShape(shape, meshShape, placements, []int{i, j})
				if err != nil {
					t.Fatal(err)
				}
				if boxes == nil {
					boxes = []mesh.Box{}
				}
				sum.Add(digestOfPart(t, &Part{Local: local(x, part, boxes), Shape: shape, Boxes: boxes, Near: true}))
			}
		}
		if !near(sum, want) {
			t.Fatalf("%v %v over %v as %v: the parts add up to %+v, the whole has %+v", x.DType(), shape, meshShape, placements, sum, want)
		}
	}
}

// A digest changes with any bit and with the place of any element.
func TestDigestSeesChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for _, dtype := range dtypes {
		x := randomTensor(rng, dtype, 24, 400)
		was := digestOf(t, x)
		bytes := x.Buffer().Data
		for range 40 {
			at, bit := rng.IntN(len(bytes)), byte(1)<<rng.IntN(8)
			bytes[at] ^= bit
			if got := digestOf(t, x); got.Sum == was.Sum {
				t.Fatalf("%v: bit %d of byte %d changes nothing", dtype, bit, at)
			}
			bytes[at] ^= bit
		}
		row := len(bytes) / 24
		swapped := slices.Concat(bytes[6*row:12*row], bytes[:6*row], bytes[12*row:])
		copy(bytes, swapped)
		got := digestOf(t, x)
		if got.Sum == was.Sum {
			t.Fatalf("%v: rows that are exchanged change nothing", dtype)
		}
		if dtype.IsFloat() && got.apart(was) < 0.1*was.Norm() {
			t.Fatalf("%v: rows that are exchanged change the projections by %v of %v", dtype, got.apart(was), was.Norm())
		}
		if dtype.IsFloat() {
			if digestOf(t, x.Neg()).Sum == got.Sum {
				t.Fatalf("%v: other signs change nothing", dtype)
			}
		}
	}
}

// The projections estimate how far two tensors are apart.
func TestProjectionsMeasure(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for _, distance := range []float64{1e-1, 1e-3, 1e-5} {
		sum := 0.0
		const draws = 50
		for range draws {
			x, y := randomTensor(rng, tensor.Float32, 30, 70), randomTensor(rng, tensor.Float32, 30, 70)
			z := x.Clone()
			z.Axpy(distance, y)
			estimate := digestOf(t, x).apart(digestOf(t, z)) / (distance * math.Sqrt(y.SumSquares()))
			if estimate < 0.05 || estimate > 4 {
				t.Fatalf("tensors that are %v apart are estimated at %v times that", distance, estimate)
			}
			sum += estimate
		}
		if mean := sum / draws; mean < 0.7 || mean > 1.3 {
			t.Errorf("tensors that are %v apart are estimated at %v times that on average", distance, mean)
		}
	}
}

// A part that is not what its boxes say is refused.
func TestWrongBoxes(t *testing.T) {
	x := tensor.Zeros(3, 2)
	for _, boxes := range [][]mesh.Box{
		{{Start: []int{0}, Shape: []int{6}, LocalStart: []int{0}}},
		{{Start: []int{0, 0}, Shape: []int{2, 2}, LocalStart: []int{0, 0}}},
	} {
		if _, err := DigestAll([]*Part{{Local: x, Shape: []int{6, 2}, Boxes: boxes}}); err == nil {
			t.Errorf("the boxes %v are taken", boxes)
		}
	}
}

// The digests that a save of the gpt case of cohort bench step needs: 3.3 million parameters,
// weights before and after, gradients, and Adam's moments before and after.
func BenchmarkDigests(b *testing.B) {
	var parts []*Part
	for i := range 7 {
		for range 6 {
			parts = append(parts, &Part{Local: tensor.Full(0.1, 256, 2160), Near: i < 5})
		}
	}
	b.SetBytes(7 * 6 * 256 * 2160 * 4)
	for b.Loop() {
		if _, err := DigestAll(parts); err != nil {
			b.Fatal(err)
		}
	}
}

// A gradient by rows has the digest of the dense one.
func TestDigestOfRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for _, shape := range [][]int{{40, 7}, {40, 3, 2}, {40}} {
		whole := tensor.Zeros(shape...)
		ids := []int64{1, 2, 3, 9, 17, 18, 39}
		rows := randomTensor(rng, tensor.Float32, append([]int{len(ids)}, shape[1:]...)...)
		for i, id := range ids {
			whole.Narrow(0, int(id), 1).CopyFrom(rows.Narrow(0, i, 1))
		}
		got, want := digestOfPart(t, &Part{Local: rows, Shape: shape, Rows: ids, Near: true}), digestOf(t, whole)
		want.Elems = got.Elems // of a row that is not there, no element is counted
		if !near(got, want) {
			t.Errorf("%v: %+v, want %+v", shape, got, want)
		}
	}
}

// Elements of a gradient that may be rounding alone are counted, but zeros are none.
func TestTinyElements(t *testing.T) {
	x := tensor.Full(-1, 50, 30)
	x.WithFloat32s(func(data []float32) { data[3], data[40], data[41], data[99] = 0, 1e-6, -1e-7, 1e-3 })
	if d := digestOfPart(t, &Part{Local: x, IsGradient: true}); d.Tiny != 2 {
		t.Errorf("%d tiny elements, want 2", d.Tiny)
	}
}
