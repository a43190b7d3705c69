// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// golden is what testdata/dtensor.py writes.
type golden struct {
	PyTorch string
	Layouts []struct {
		Shape, Mesh   []int
		Placements    []string
		Local, Offset [][]int // by rank
		Elements      [][]int // by rank, for tensors of one dim
	}
	FSDPOfTP []struct {
		Size               int
		Mesh               []int
		Chunks, Placements [][]int // by rank: by torch.chunk, and by PyTorch's strided shard
	} `json:"fsdp_of_tp"`
	Moves []struct {
		Shape, Mesh   []int
		From, To      []string
		Before, After [][]float64 // by rank
		Local         [][]int
	}
}

func readGolden(t *testing.T) *golden {
	t.Helper()
	text, err := os.ReadFile("testdata/dtensor_2.15.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	t.Logf("PyTorch %s", g.PyTorch)
	return &g
}

// parsePlacements reads placements as String writes them.
func parsePlacements(t *testing.T, texts []string) []Placement {
	t.Helper()
	var out []Placement
	for _, s := range texts {
		p, dim, pieces := Replicate(), 0, 0
		if n, _ := fmt.Sscanf(s, "StridedShard(%d, %d)", &dim, &pieces); n == 2 {
			p = StridedShard(dim, pieces)
		} else if n, _ := fmt.Sscanf(s, "Shard(%d)", &dim); n == 1 {
			p = Shard(dim)
		} else if s == "Partial(sum)" {
			p = Partial(dist.Sum)
		}
		if p.String() != s {
			t.Fatalf("%q is no placement", s)
		}
		out = append(out, p)
	}
	return out
}

// TestPyTorchLayouts compares Boxes with compute_local_shape_and_global_offset. The offsets of empty
// parts mean nothing.
func TestPyTorchLayouts(t *testing.T) {
	compared := 0
	for _, c := range readGolden(t).Layouts {
		placements := parsePlacements(t, c.Placements)
		for rank, local := range c.Local {
			at := coordinateOf(c.Mesh, rank)
			boxes, err := Boxes(c.Shape, c.Mesh, placements, at)
			if err != nil {
				t.Fatal(err)
			}
			shape, err := LocalShape(c.Shape, c.Mesh, placements, at)
			if err != nil {
				t.Fatal(err)
			}
			same := slices.Equal(shape, local) && (len(boxes) == 0 || slices.Equal(boxes[0].Start, c.Offset[rank]))
			if c.Elements != nil {
				same = same && slices.Equal(elements(t, c.Shape[0], c.Mesh, placements, at), c.Elements[rank])
			}
			compared++
			if !same {
				t.Errorf("%v of %v over %v: rank %d at %v holds %v from %v on, PyTorch %v from %v on %v", placements, c.Shape, c.Mesh, rank, at, shape, boxes, local, c.Offset[rank], c.Elements)
			}
		}
	}
	t.Logf("%d parts compared", compared)
}

// TestPyTorchFSDPOfTP: what FSDP holds of what tensor parallelism holds is what torch.chunk gives, at
// all sizes. PyTorch's own function for strided shards gives elements of one rank of tensor parallelism
// to another where the sizes do not divide (pytorch/pytorch#168134).
func TestPyTorchFSDPOfTP(t *testing.T) {
	wrong := 0
	for _, c := range readGolden(t).FSDPOfTP {
		placements := []Placement{StridedShard(0, c.Mesh[1]), Shard(0)}
		for rank, want := range c.Chunks {
			got := elements(t, c.Size, c.Mesh, placements, coordinateOf(c.Mesh, rank))
			if !slices.Equal(got, want) {
				t.Errorf("%v of %d elements over %v: rank %d holds %v, torch.chunk gives %v", placements, c.Size, c.Mesh, rank, got, want)
			}
		}
		if fmt.Sprint(c.Placements) != fmt.Sprint(c.Chunks) {
			wrong++
		}
	}
	if wrong == 0 {
		t.Error("PyTorch gives the same everywhere: the sizes of this test show nothing")
	}
	t.Logf("PyTorch's strided shard differs from torch.chunk in %d cases", wrong)
}

// TestPyTorchMoves compares what all ranks hold after a redistribution with what DTensors held.
func TestPyTorchMoves(t *testing.T) {
	for _, c := range readGolden(t).Moves {
		from, to := parsePlacements(t, c.From), parsePlacements(t, c.To)
		results := make([][]float64, len(c.Before))
		err := dist.Spawn(t.Context(), len(c.Before), func(ctx context.Context, g *dist.Group) error {
			m, err := New(ctx, g, axesOfShape(c.Mesh)...)
			if err != nil {
				return err
			}
			defer m.Close()
			x := Tensor{Layout: Layout{m, c.Shape, from}}
			shape, err := x.LocalShape()
			if err != nil {
				return err
			}
			before := c.Before[g.Rank()]
			x.Local = tensor.FromFloat64(before, len(before)).Reshape(shape...)
			if x, err = x.Redistribute(ctx, to...); err != nil {
				return err
			}
			if !slices.Equal(x.Local.Shape(), c.Local[g.Rank()]) {
				return fmt.Errorf("a part has the shape %v, PyTorch's %v", x.Local.Shape(), c.Local[g.Rank()])
			}
			results[g.Rank()] = float64s(x.Local)
			return nil
		})
		if err != nil {
			t.Fatalf("%v of %v over %v to %v: %v", from, c.Shape, c.Mesh, to, err)
		}
		for rank := range results {
			at := coordinateOf(c.Mesh, rank)
			// How a sum that stays owed is divided is each one's own choice.
			got, want := combined(results, c.Mesh, to, at), combined(c.After, c.Mesh, to, at)
			if !slices.Equal(got, want) {
				t.Errorf("%v of %v over %v to %v: rank %d holds %v, PyTorch %v", from, c.Shape, c.Mesh, to, rank, got, want)
			}
		}
	}
}
