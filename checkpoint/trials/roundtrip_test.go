// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestRoundTrips: tensors of any dtype and shape, saved from any mesh, have the same bytes
// on any other mesh. So have the values of the run, and those of each rank where the number
// of ranks is the same.
func TestRoundTrips(t *testing.T) {
	seed := seeded.Of(t)
	trials(t, 60, func(i int) error { return roundTrip(t, seed<<32+uint64(i)) })
}

// onMesh runs ranks with a mesh. Without axes there is one rank, without group and mesh.
func onMesh(t *testing.T, axes []mesh.Axis, main func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error) error {
	t.Helper()
	n := numRanks(axes)
	if axes == nil {
		n = 0
	}
	return spawn(t, n, func(ctx context.Context, g *dist.Group) error {
		if g == nil {
			return main(ctx, nil, nil, 0)
		}
		m, err := mesh.New(ctx, g, axes...)
		if err != nil {
			return err
		}
		defer m.Close()
		return main(ctx, g, m, g.Rank())
	})
}

func roundTrip(t *testing.T, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	draws, from, to := drawTensors(r), drawAxes(r), drawAxes(r)
	values, numSaves := drawValues(r), pick(r, 1, 1, 2)
	lies := drawLies(seed, draws, from, "saved")
	dir := storage.Dir(t.TempDir())
	ofRank := func(rank int) map[string]any {
		return map[string]any{"random": []int{rank, int(seed % 1000)}}
	}
	err := onMesh(t, from, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		h, err := hold(draws, lies, m, true)
		if err != nil {
			return err
		}
		for step := range numSaves { // the second one refers to frozen files of the first
			s := checkpoint.State{Sections: h.sections(), Values: values, RankValues: ofRank(rank)}
			if err := checkpoint.Save(ctx, g, dir, step+1, s); err != nil {
				return err
			}
		}
		return h.compare() // saving changes nothing
	})
	if err != nil {
		return fmt.Errorf("save on %v: %w", from, err)
	}
	lies = drawLies(seed, draws, to, "loaded")
	err = onMesh(t, to, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		h, err := hold(draws, lies, m, false)
		if err != nil {
			return err
		}
		into, same := pointers(values)
		own, sameOwn := pointers(ofRank(rank))
		s := checkpoint.State{Sections: h.sections(), Values: into}
		if numRanks(from) == numRanks(to) {
			s.RankValues = own
		}
		step, err := checkpoint.Load(ctx, g, dir, s)
		if err != nil {
			return err
		}
		if step != numSaves {
			return fmt.Errorf("the newest checkpoint is step %d, want %d", step, numSaves)
		}
		if err := h.compare(); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
		if s.RankValues != nil {
			if err := sameOwn(); err != nil {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
		}
		return same()
	})
	if err != nil {
		return fmt.Errorf("load on %v what %v saved: %w", to, from, err)
	}
	c, err := checkpoint.Open(t.Context(), dir, "")
	if err != nil {
		return err
	}
	return c.Verify(t.Context(), nil)
}
