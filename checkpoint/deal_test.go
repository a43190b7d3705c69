// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// sketchOf returns the state of a rank of a mesh replicate × fsdp that exists only here. frozen
// and away are drawn from r, which is the same for all ranks.
func sketchOf(rank, replicate, fsdp, numTensors int, r *rand.Rand) (State, error) {
	m, err := mesh.Sketch(rank, mesh.Axis{Name: "replicate", Size: replicate}, mesh.Axis{Name: "fsdp", Size: fsdp})
	if err != nil {
		return State{}, err
	}
	var parts []Part
	for i := range numTensors {
		shape := []int{1 + r.IntN(3*fsdp), 1 + r.IntN(8)}
		l := mesh.Layout{Mesh: m, Shape: shape, Placements: []mesh.Placement{mesh.Replicate(), mesh.Replicate()}}
		switch r.IntN(4) {
		case 0, 1:
			l.Placements[1] = mesh.Shard(0)
		case 2:
			l.Placements[0], l.Placements[1] = mesh.Shard(0), mesh.Shard(1)
		}
		local, err := l.LocalShape()
		if err != nil {
			return State{}, err
		}
		p := Part{Name: fmt.Sprint("t", i), Tensor: mesh.Tensor{Local: tensor.New(tensor.Meta, tensor.Float32, local...), Layout: l}, Frozen: r.IntN(3) == 0}
		// As if the axis replicate had stages: only one of its ranks has the tensor.
		if stage := r.IntN(2 * replicate); stage < replicate && l.Placements[0].IsReplicate() {
			p.Away = m.Coordinate()[0] != stage
		}
		parts = append(parts, p)
	}
	return State{Sections: map[string][]Part{Model: parts}}, nil
}

// TestDeal: the ranks write each element of each tensor once, whatever is replicated, away or
// frozen, and about the same number of bytes. A rank of 1,000 knows its share in an instant.
func TestDeal(t *testing.T) {
	seed := seeded.Of(t)
	for draw := range uint64(30) {
		sizes := rand.New(rand.NewPCG(seed, draw))
		replicate, fsdp := 1+sizes.IntN(4), 1+sizes.IntN(5)
		num, share := 1+sizes.IntN(40), int64(1+sizes.IntN(200))
		states := make([]State, replicate*fsdp)
		for rank := range states {
			var err error
			if states[rank], err = sketchOf(rank, replicate, fsdp, num, rand.New(rand.NewPCG(seed, draw+1000))); err != nil {
				t.Fatal(err)
			}
		}
		away := func(r, i int) bool { return states[r].Sections[Model][i].Away }
		written := make([]map[string]bool, num)
		for rank, s := range states {
			files, err := crew{rank: rank, size: len(states)}.deal(s, away, share, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				for _, b := range f.boxes {
					var i int
					fmt.Sscanf(b.info.Name, "t%d", &i)
					if written[i] == nil {
						written[i] = map[string]bool{}
					}
					for k := range numElems(b.box.Shape) {
						cols := b.box.Shape[1]
						at := fmt.Sprint(b.box.Start[0]+k/cols, b.box.Start[1]+k%cols)
						if written[i][at] {
							t.Fatalf("draw %d: element %s of %s is written twice", draw, at, b.info.Name)
						}
						written[i][at] = true
					}
					if b.part.Frozen != f.frozen {
						t.Errorf("draw %d: %s is in a file with others", draw, b.info.Name)
					}
				}
			}
		}
		for i, p := range states[0].Sections[Model] {
			if got, want := len(written[i]), numElems(p.Shape); got != want {
				t.Errorf("draw %d: %d of %d elements of %s are written", draw, got, want, p.Name)
			}
		}
	}
	s, err := sketchOf(517, 8, 125, 1000, rand.New(rand.NewPCG(seed, 7)))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	files, err := crew{rank: 517, size: 1000}.deal(s, func(int, int) bool { return false }, 1, nil)
	if took := time.Since(begin); err != nil || len(files) == 0 || took > loaded.Allow(10*time.Second) {
		t.Errorf("%d files in %v, %v", len(files), took, err)
	} else {
		t.Logf("1,000 tensors on 1,000 ranks are dealt in %v", took)
	}
}
