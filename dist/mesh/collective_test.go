// SPDX-License-Identifier: Apache-2.0

package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// TestCollectives: on a mesh of 2 × 3 ranks, a value that owes its sum on both axes is
// reduce-scattered over one, summed over the other, and put together again, along each dim.
func TestCollectives(t *testing.T) {
	err := dist.Spawn(t.Context(), 6, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return err
		}
		defer m.Close()
		for dim := range 2 {
			shape := []int{6, 3}
			whole, want := make([]float32, 18), make([]float32, 18)
			for i := range whole {
				whole[i] = float32(i * (g.Rank() + 1))
				want[i] = float32(i * 21)
			}
			owing := mesh.Tensor{Local: tensor.FromFloat32(whole, shape...), Layout: mesh.Layout{
				Mesh: m, Shape: shape, Placements: []mesh.Placement{mesh.Partial(dist.Sum), mesh.Partial(dist.Sum)},
			}}
			local := slices.Clone(shape)
			local[dim] /= 3
			shards, err := mesh.ReduceScatterAsync(ctx, "fsdp", dim, []*tensor.Tensor{tensor.Zeros(local...)}, owing).Wait(ctx)
			if err != nil {
				return err
			}
			if err := shards[0].Expect(mesh.Partial(dist.Sum), mesh.Shard(dim)); err != nil {
				return err
			}
			sums, err := mesh.AllReduceAsync(ctx, "replicate", shards...).Wait(ctx)
			if err != nil {
				return err
			}
			all, err := mesh.AllGatherAsync(ctx, "fsdp", []*tensor.Tensor{tensor.Zeros(shape...)}, sums...).Wait(ctx)
			if err != nil {
				return err
			}
			if err := all[0].Expect(mesh.Replicate(), mesh.Replicate()); err != nil {
				return err
			}
			if got := all[0].Local.Float32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d, dim %d: %v, want %v", g.Rank(), dim, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCollectivesRefuse: a reduction that is not owed, or owed elsewhere, sends nothing and says
// what is wrong.
func TestCollectivesRefuse(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "replicate", Size: 1}, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return err
		}
		defer m.Close()
		value := func(rows int, placements ...mesh.Placement) mesh.Tensor {
			local := tensor.Zeros(rows, 2)
			local.SetName("h.0.weight.grad")
			return mesh.Tensor{Local: local, Layout: mesh.Layout{Mesh: m, Shape: []int{rows, 2}, Placements: placements}}
		}
		sum, whole := mesh.Partial(dist.Sum), mesh.Replicate()
		dst := []*tensor.Tensor{tensor.Zeros(2, 2)}
		for want, p := range map[string]*mesh.Pending{
			"h.0.weight.grad is Replicate on axis fsdp, want Partial: it has been reduced already": mesh.AllReduceAsync(ctx, "fsdp", value(4, whole, whole)),
			"is Replicate on axis fsdp, want Partial: it owes its reduction on axis replicate":     mesh.AllReduceAsync(ctx, "fsdp", value(4, sum, whole)),
			"is Shard(0) on axis fsdp, want Partial: a reduce-scatter has nothing to do there":     mesh.ReduceScatterAsync(ctx, "fsdp", 0, dst, value(4, whole, mesh.Shard(0))),
			"is Partial(sum) on axis fsdp, want Shard: an all-gather has nothing to do there":      mesh.AllGatherAsync(ctx, "fsdp", dst, value(4, whole, sum)),
			"h.0.weight.grad of shape [3 2] is not cut evenly by 2 ranks along dim 0":              mesh.ReduceScatterAsync(ctx, "fsdp", 0, dst, value(3, whole, sum)),
			`there is no axis "fsd", did you mean "fsdp"?`:                                         mesh.AllReduceAsync(ctx, "fsd", value(4, sum, sum)),
			"h.0.weight.grad owes sum, h.0.weight.grad owes max: reduce them apart":                mesh.AllReduceAsync(ctx, "fsdp", value(4, whole, sum), value(4, whole, mesh.Partial(dist.Max))),
			"there are no values": mesh.AllReduceAsync(ctx, "fsdp"),
		} {
			if _, err := p.Wait(ctx); err == nil || !strings.Contains(err.Error(), want) || !p.Ended() {
				return fmt.Errorf("the error is %v, want one that says %q", err, want)
			}
		}
		var e *mesh.TypeError
		err = value(4, whole, sum).Expect(whole, whole)
		if !errors.As(err, &e) || e.Axis != "fsdp" || !strings.Contains(err.Error(), "a reduction over the axis is missing") {
			return fmt.Errorf("a value that owes a sum is taken: %w", err)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBroadcast: the ranks of an axis get the value of one of them, and what they have alike
// already is not sent again.
func TestBroadcast(t *testing.T) {
	err := dist.Spawn(t.Context(), 4, func(ctx context.Context, g *dist.Group) error {
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return err
		}
		defer m.Close()
		own := mesh.Tensor{Local: tensor.Full(float64(g.Rank()), 3), Layout: mesh.Layout{Mesh: m, Shape: []int{3}, Placements: []mesh.Placement{mesh.Varying(), mesh.Varying()}}}
		out, err := mesh.BroadcastAsync(ctx, "fsdp", 1, own).Wait(ctx)
		if err != nil {
			return err
		}
		if err := out[0].Expect(mesh.Varying(), mesh.Replicate()); err != nil {
			return err
		}
		if got, want := out[0].Local.Float32s()[0], float32(g.Rank()|1); got != want {
			return fmt.Errorf("rank %d has %v, want %v", g.Rank(), got, want)
		}
		_, err = mesh.BroadcastAsync(ctx, "fsdp", 1, out...).Wait(ctx)
		if err == nil || !strings.Contains(err.Error(), "is Replicate on axis fsdp, want Varying: a broadcast has nothing to do there") {
			return fmt.Errorf("the second broadcast gives %v", err)
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}
