// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/disttest"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
)

// TestWithinGroups: on two nodes of two ranks, over all of which the model is sharded, the
// backward pass gathers inside of a node: what a unit has there comes from the parts, and what
// the groups of neighbours send is that and no more.
func TestWithinGroups(t *testing.T) {
	res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: shardAxis})
		if err != nil {
			return err
		}
		model := newMaze(0, g.Rank(), 0, 1, 2)
		f, err := FullyShard(ctx, model, m, groups...)
		if err != nil {
			return err
		}
		near := f.near.World()
		if near.Size() != 2 || near.LocalSize() != 2 {
			return fmt.Errorf("the parts are among %v", near.Ranks())
		}
		// The last block stays between the passes, from the second step on.
		want := f.unitOf[model.Blocks[0]].fullBytes()/2 + f.unitOf[model.Blocks[1]].fullBytes()/2
		in := newBatches(g.Rank(), g.Size(), 5)
		for step := range 3 {
			if err := near.Barrier(ctx); err != nil { // what was sent before has been read
				return err
			}
			before := near.Traffic()
			c := nn.Training(ctx)
			ids, targets := in.next()
			_, err := lossOf(c, f, ids, targets)
			c.Close()
			if err != nil {
				return err
			}
			if err := near.Barrier(ctx); err != nil {
				return err
			}
			if sent := near.Traffic().Since(before).SentBytes; step > 0 && sent != want {
				return fmt.Errorf("step %d: %d bytes were sent to neighbours, want %d", step, sent, want)
			}
			for _, u := range f.units {
				if u.here || u.partOf != nil || u.source != nil {
					return fmt.Errorf("step %d: %s are kept after the pass", step, u.name())
				}
			}
			for _, p := range nn.Parameters(model) {
				p.ZeroGrad()
			}
		}
		return nil
	}, disttest.WithNodes(0, 0, 1, 1))
	if err := res.Err(); err != nil {
		t.Error(err)
	}
}

// TestPartsArePredicted: the predicted peak is larger by the memory of the parts.
func TestPartsArePredicted(t *testing.T) {
	err := spawn(t, 4, func(ctx context.Context, g *dist.Group) error {
		var peaks []int64
		parts, slack := int64(0), int64(0)
		for _, opts := range [][]FSDPOption{nil, groups} {
			model := newMaze(0, g.Rank(), 0, 1, 2)
			f, err := sharded(ctx, g, model, 1, opts...)
			if err != nil {
				return err
			}
			ids, targets := newBatches(g.Rank(), g.Size(), 5).next()
			p := Predict(ctx, f, PredictOptions{Loss: lossOn(ids, targets)})
			if p.NoPeak != nil {
				return p.NoPeak
			}
			peaks = append(peaks, p.PeakBytes)
			c := nn.Training(ctx)
			_, err = lossOf(c, f, ids, targets)
			c.Close()
			if err != nil {
				return err
			}
			for _, s := range f.params {
				if s.part != nil {
					parts += sizeOf(s.part.Shape(), s.part.DType())
					slack += 64 // each begins at a cache line
				}
			}
		}
		if more := peaks[1] - peaks[0]; parts == 0 || more < parts || more > parts+slack {
			return fmt.Errorf("the peak with parts is predicted %d bytes larger, and they have %d", more, parts)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestShardedByNode: over a mesh that follows the nodes, the ranks compute what one group of
// replicas does, also where the ranks of a node do not follow each other.
func TestShardedByNode(t *testing.T) {
	for _, nodes := range [][]int{{0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 0, 0}} {
		res := disttest.Run(t, 4, func(ctx context.Context, g *dist.Group) error {
			want, _, err := trainSharded(ctx, g, func(m *toy) (Strategy, error) { return NewDDP(ctx, m, g) }, "adamw", 4)
			if err != nil {
				return err
			}
			got, _, err := trainSharded(ctx, g, func(m *toy) (Strategy, error) {
				mesh, err := mesh.ByNode(ctx, g, replicateAxis, shardAxis)
				if err != nil {
					return nil, err
				}
				return FullyShard(ctx, m, mesh)
			}, "adamw", 4)
			for i := range got {
				if !closeTo(got[i], want[i], 1e-5) {
					return fmt.Errorf("step %d: the loss is %v, that of DDP %v", i, got[i], want[i])
				}
			}
			return err
		}, disttest.WithNodes(nodes...))
		if err := res.Err(); err != nil {
			t.Errorf("nodes %v: %v", nodes, err)
		}
	}
}
