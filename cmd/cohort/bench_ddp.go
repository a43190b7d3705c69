// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchDDPCommand(f *benchFlags) *cobra.Command {
	var numRanks, numSteps int
	cmd := &cobra.Command{
		Use:   "ddp",
		Short: "Training steps under data parallelism, a process of one thread a rank",
		Long: fmt.Sprintf(`Measure training steps of the mlp with a batch of %d for each rank. Every rank is a
process of one thread. Its work is the same for every number of ranks: with perfect
scaling the time stays that of --ranks 1. The same work without data parallelism is

  cohort bench step --model mlp --batch %d --threads 1`, bench.DDPBatch, bench.DDPBatch),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bench.CheckSteps(numSteps); err != nil {
				return usageError{fmt.Errorf("bench ddp: %w", err)}
			}
			return f.onRanks(cmd.Context(), numRanks, 1, nil, func(ctx context.Context, g *dist.Group) error {
				r, err := bench.DDP(ctx, g, numSteps)
				if err != nil || g.Rank() != 0 {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "number of ranks")
	cmd.Flags().IntVar(&numSteps, "steps", 30, "number of steps to measure")
	return cmd
}
