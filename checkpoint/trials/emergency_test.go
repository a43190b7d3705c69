// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestEmergency: ranks write what they hold, each alone, and some of them do not. If the boxes of
// the others are all elements of all tensors, the newest checkpoint is made of them. Otherwise it
// is the one before, and the list says which ranks are missing.
func TestEmergency(t *testing.T) {
	seed := seeded.Of(t)
	numWhole := 0
	trials(t, 25, func(i int) error {
		whole, err := emergency(t, seed<<32+uint64(i))
		if whole {
			numWhole++
		}
		return err
	})
	t.Logf("in %d trials the parts were whole tensors", numWhole)
}

func emergency(t *testing.T, seed uint64) (whole bool, err error) {
	r := rand.New(rand.NewPCG(seed, 8))
	c := drawCrash(t, seed)
	if c.axes = drawAxes(r); c.axes == nil {
		c.axes = axesOf("fsdp2")
	}
	dir := storage.Dir(filepath.Join(t.TempDir(), "run"), storage.WithoutSync())
	if c.numBefore = r.IntN(2); c.numBefore > 0 {
		if err := c.saves(t, []int{1}, func(int) storage.Storage { return dir }); err != nil {
			return false, err
		}
	}
	size, draws := numRanks(c.axes), c.at(2)
	lies := drawLies(seed, draws, c.axes, "alone")
	var missing []int
	for rank := range size {
		if chance(r, 0.25) && len(missing) < size-1 {
			missing = append(missing, rank)
		}
	}
	held := make([]held, size)
	for rank := range size {
		m, err := mesh.Sketch(rank, c.axes...)
		if err != nil {
			return false, err
		}
		if held[rank], err = hold(draws, lies, m, true); err != nil {
			return false, err
		}
	}
	var ranks sync.WaitGroup
	errs := make([]error, size)
	for rank := range size {
		if slices.Contains(missing, rank) {
			continue
		}
		ranks.Go(func() {
			s := checkpoint.State{Sections: held[rank].sections(), Values: map[string]any{"step": 2}, RankValues: map[string]any{"rank": rank}}
			errs[rank] = checkpoint.SavePart(t.Context(), rank, size, dir, 2, s)
		})
	}
	ranks.Wait()
	for rank, err := range errs {
		if err != nil {
			return false, fmt.Errorf("rank %d of %v: %w", rank, c.axes, err)
		}
	}
	if whole, err = covered(draws, held, missing); err != nil {
		return false, err
	}
	listed, err := checkpoint.List(t.Context(), dir)
	if err != nil || len(listed) != 1+c.numBefore || listed[0].Kind != checkpoint.Parts || !slices.Equal(listed[0].Missing, missing) || (listed[0].Err == nil) != whole {
		return whole, fmt.Errorf("the ranks %v of %v are missing, whole %v, and the list is %+v, %v", missing, c.axes, whole, listed, err)
	}
	want := c.numBefore
	if whole {
		want = 2
	}
	if found, err := c.newestIn(t, dir); err != nil || found != want {
		return whole, fmt.Errorf("without the ranks %v of %v step %d is loaded, want %d: %w", missing, c.axes, found, want, err)
	}
	// Training goes on.
	if err := c.saves(t, []int{3}, func(int) storage.Storage { return dir }); err != nil {
		return whole, err
	}
	if found, err := c.newestIn(t, dir); err != nil || found != 3 {
		return whole, fmt.Errorf("step %d is loaded after step 3: %w", found, err)
	}
	left, err := filepath.Glob(filepath.Join(dir.Path(""), "*.tmp-*"))
	if err != nil || len(left) > 0 {
		return whole, fmt.Errorf("%v are left: %w", left, err)
	}
	return whole, nil
}

// covered says whether all elements of all tensors are held by the ranks that are there. It marks one element
// after the other.
func covered(draws []tensorDraw, ranks []held, missing []int) (bool, error) {
	for i, d := range draws {
		marks := make([]bool, numElems(d.shape))
		for rank, h := range ranks {
			p := h.parts[i]
			if p.Away || slices.Contains(missing, rank) {
				continue
			}
			boxes, err := mesh.Layout{Mesh: p.Mesh, Shape: d.shape, Placements: p.Placements}.Boxes()
			if err != nil {
				return false, err
			}
			for _, b := range boxes {
				eachElement(b, d.shape, p.Local.Shape(), func(at, _ int) { marks[at] = true })
			}
		}
		if slices.Contains(marks, false) {
			return false, nil
		}
	}
	return true, nil
}
