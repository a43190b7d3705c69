// SPDX-License-Identifier: Apache-2.0

package dist_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// When a rank is lost, the others go on in a group of their own. A real job
// loads its last checkpoint then.
func ExampleGroup_NewGroup_survivors() {
	err := dist.Spawn(context.Background(), 3, func(ctx context.Context, world *dist.Group) error {
		if world.Rank() == 1 {
			return errors.New("the disk is full")
		}
		err := world.Barrier(ctx)
		var lost *dist.RankError
		if !errors.As(err, &lost) {
			return err
		}
		var survivors []int
		for r := range world.Size() {
			if r != lost.Rank {
				survivors = append(survivors, r)
			}
		}
		g, err := world.NewGroup(ctx, survivors)
		if err != nil {
			return err
		}
		x := tensor.Full(1, 1)
		if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Printf("rank %d is lost (%v); %v of %d go on\n", lost.Rank, lost.Cause, x.Item(), world.Size())
		}
		return g.Barrier(ctx)
	})
	fmt.Println(err)
	// Output:
	// rank 1 is lost (the disk is full); 2 of 3 go on
	// rank 1: the disk is full
}
