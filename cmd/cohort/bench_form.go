// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchFormCommand(f *benchFlags) *cobra.Command {
	var numRanks int
	var kind string
	cmd := &cobra.Command{
		Use:   "form",
		Short: "Forming a group: from the start of rank 0 to the end of a first barrier",
		Long: `Measure how long many ranks take until they can communicate: from the start of the
first rank to the end of a barrier of all. Ranks are processes on this machine,
which have to be started and to find each other, or goroutines of one process.`,
		Example: `  cohort bench form --ranks 256
  cohort bench form --ranks 1000 --kind goroutines`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now() // in every rank: rank 0 is started first
			formed := func(ctx context.Context, g *dist.Group) error {
				if err := g.Barrier(ctx); err != nil || g.Rank() != 0 {
					return err
				}
				return f.emitter(cmd)(bench.Formed(g, kind, time.Since(start)))
			}
			switch kind {
			case "processes":
				return f.onRanks(cmd.Context(), numRanks, 1, nil, formed)
			case "goroutines":
				return f.profiled(func() error { return dist.Spawn(cmd.Context(), numRanks, formed) })
			}
			return usageError{fmt.Errorf("bench form: --kind is %q, want processes or goroutines", kind)}
		},
	}
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "number of ranks")
	cmd.Flags().StringVar(&kind, "kind", "processes", "what the ranks are")
	oneOf(cmd.Flags(), "kind", "processes", "goroutines")
	return cmd
}
