// SPDX-License-Identifier: Apache-2.0

package flightlog_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/tensor"
)

// A program that finds itself at an end can look at its ranks' recorders itself.
func ExampleMerge() {
	dumps := make([]*flightlog.Dump, 2)
	err := dist.Spawn(context.Background(), 2, func(ctx context.Context, g *dist.Group) error {
		x := tensor.Zeros(4)
		for range 3 {
			if err := g.AllReduce(ctx, x, dist.Sum); err != nil {
				return err
			}
		}
		var file bytes.Buffer
		if err := g.Dump(&file); err != nil {
			return err
		}
		d, err := flightlog.Read(&file)
		dumps[g.Rank()] = d
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(flightlog.Merge(dumps).Lines()[0])
	// Output:
	// group "world" of 2 ranks: nobody waits; its 3 collectives have ended
}
