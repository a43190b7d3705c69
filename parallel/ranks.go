// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// ranks are the ranks of a group as a mesh of one axis. Values that concern all of
// them alike go through its collectives, which check what the values owe.
type ranks struct {
	mesh *mesh.Mesh
	axis string
}

// newRanks arranges the ranks of a group on one axis.
func newRanks(ctx context.Context, group *dist.Group, axis string) (ranks, error) {
	m, err := mesh.New(ctx, group, mesh.Axis{Name: axis})
	return ranks{m, axis}, err
}

func (r ranks) group() *dist.Group { return r.mesh.World() }

// value returns a value of a global shape that lies on the axis as the placement says.
func (r ranks) value(local *tensor.Tensor, at mesh.Placement, shape ...int) mesh.Tensor {
	return mesh.Tensor{Local: local, Layout: mesh.Layout{Mesh: r.mesh, Shape: shape, Placements: []mesh.Placement{at}}}
}

// arrived waits for one value, which is to be the same on all ranks then. The
// collective ends with ctx itself, and then says for whom it waited.
func arrived(ctx context.Context, p *mesh.Pending) error {
	out, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	return out[0].Expect(mesh.Replicate())
}

// broadcast gives all ranks rank 0's values, in place.
func (r ranks) broadcast(ctx context.Context, t *tensor.Tensor) error {
	return r.broadcastFrom(ctx, t, 0)
}

// broadcastFrom gives all ranks the values of one, in place.
func (r ranks) broadcastFrom(ctx context.Context, t *tensor.Tensor, root int) error {
	return arrived(ctx, mesh.BroadcastAsync(ctx, r.axis, root, r.value(t, mesh.Varying(), t.Shape()...)))
}

// gather puts the values of all ranks into dst, in the order of the ranks.
func (r ranks) gather(ctx context.Context, dst, t *tensor.Tensor) error {
	shape := t.Shape()
	shape[0] *= r.group().Size()
	return arrived(ctx, mesh.AllGatherAsync(ctx, r.axis, []*tensor.Tensor{dst}, r.value(t, mesh.Shard(0), shape...)))
}

// shareState gives all ranks rank 0's parameters and buffers. What has no data is left
// out.
func (r ranks) shareState(ctx context.Context, model any) error {
	for _, s := range nn.StateDict(model) {
		if s.Tensor.Device() == tensor.Meta {
			continue
		}
		if err := r.broadcast(ctx, s.Tensor); err != nil {
			return fmt.Errorf("broadcast %s from rank 0: %w", s.Name, err)
		}
	}
	return nil
}
