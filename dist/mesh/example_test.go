// SPDX-License-Identifier: Apache-2.0

package mesh_test

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// A tensor of rank 0 is cut over the axis fsdp, cut along another dim, and taken together again.
func Example() {
	err := dist.Spawn(context.Background(), 4, func(ctx context.Context, g *dist.Group) error {
		// The size of fsdp is left out: it is what is left of 4 ranks.
		m, err := mesh.New(ctx, g, mesh.Axis{Name: "replicate", Size: 2}, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return err
		}
		defer m.Close()
		var weight *tensor.Tensor
		if g.Rank() == 0 {
			weight = tensor.FromFloat32([]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5, 2)
		}
		rows, err := mesh.Distribute(ctx, weight, m, 0, mesh.Replicate(), mesh.Shard(0))
		if err != nil {
			return err
		}
		columns, err := rows.Redistribute(ctx, mesh.Replicate(), mesh.Shard(1))
		if err != nil {
			return err
		}
		whole, err := columns.Full(ctx)
		if err != nil {
			return err
		}
		if g.Rank() == 1 {
			fmt.Print(m)
			fmt.Println(rows.Local)
			fmt.Println(columns.Local.Shape(), whole.Shape())
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// replicate 2 × fsdp 2
	//              fsdp 0  1
	// replicate 0       0  1*
	// replicate 1       2  3
	// float32[2 2] [[6 7] [8 9]]
	// [5 1] [5 2]
}

// A sketch shows who would hold what, without any rank.
func ExampleLayout_Picture() {
	m, err := mesh.Sketch(0, mesh.Axis{Name: "fsdp", Size: 2}, mesh.Axis{Name: "tp", Size: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	weight := mesh.Layout{Mesh: m, Shape: []int{5, 4}, Placements: []mesh.Placement{mesh.Shard(0), mesh.Shard(1)}}
	fmt.Print(weight.Picture())
	// Output:
	// [5 4] as Shard(0), Shard(1) over fsdp 2 × tp 2
	//             tp 0         1
	// fsdp 0  0:3, 0:2  0:3, 2:4
	// fsdp 1  3:5, 0:2  3:5, 2:4
}

// Two reductions are owed. The plan pays off the first one in part, so that the second one moves
// half as much.
func ExampleNewPlan() {
	sum := mesh.Partial(dist.Sum)
	plan, err := mesh.NewPlan([]int{8, 8}, []int{2, 2},
		[]mesh.Placement{sum, sum}, []mesh.Placement{mesh.Shard(0), mesh.Replicate()}, true)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(plan)
	fmt.Println(plan.NumElemsOf(0), "elements from rank 0")
	// Output:
	// reduce-scatter over axis 0: [Partial(sum) Partial(sum)] to [Shard(0) Partial(sum)], 128 elements
	// all-reduce over axis 1: [Shard(0) Partial(sum)] to [Shard(0) Replicate], 128 elements
	// 64 elements from rank 0
}

// A model is to be sharded inside each node, and replicated between the nodes: here there is one.
func ExampleByNode() {
	err := dist.Spawn(context.Background(), 4, func(ctx context.Context, group *dist.Group) error {
		m, err := mesh.ByNode(ctx, group, "replicate", "fsdp")
		if err != nil {
			return err
		}
		defer m.Close()
		if group.Rank() == 0 {
			fmt.Print(m)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// replicate 1 × fsdp 4
	//              fsdp 0  1  2  3
	// replicate 0       0* 1  2  3
}
