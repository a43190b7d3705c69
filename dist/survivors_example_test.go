// SPDX-License-Identifier: Apache-2.0

package dist_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// When ranks are lost, the others go on in a group of their own. Several may be
// lost at once, and not all survivors hear of the same one first: each leaves out
// whom it hears of, until a group comes together. A real job loads its last
// checkpoint then.
func ExampleGroup_NewGroup_survivors() {
	// goOn makes the group of those that are left, after an error on world.
	goOn := func(ctx context.Context, world *dist.Group, err error) (g *dist.Group, _ error) {
		alive := world.Ranks()
		for err != nil {
			var lost *dist.RankError
			if !errors.As(err, &lost) || lost.JobRank() == world.Rank() { // this one was given up
				return nil, err
			}
			alive = slices.DeleteFunc(alive, func(r int) bool { return r == lost.JobRank() })
			g, err = world.NewGroup(ctx, alive)
		}
		return g, nil
	}
	err := dist.Spawn(context.Background(), 3, func(ctx context.Context, world *dist.Group) error {
		if world.Rank() == 1 {
			return errors.New("the disk is full")
		}
		g, err := goOn(ctx, world, world.Barrier(ctx))
		if err != nil {
			return err
		}
		x := tensor.Full(1, 1) // load the checkpoint here
		if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Printf("%v of %d go on: ranks %v\n", x.Item(), world.Size(), g.Ranks())
		}
		return g.Barrier(ctx)
	})
	fmt.Println(err)
	// Output:
	// 2 of 3 go on: ranks [0 2]
	// rank 1: the disk is full
}
