// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchCkptCommand(f *benchFlags) *cobra.Command {
	var o bench.CkptOptions
	bytes := sizes{values: &[]int{512 << 20}}
	var numRanks, numThreads int
	cmd := &cobra.Command{
		Use:   "ckpt",
		Short: "Saving and loading checkpoints, beside the disk and memory",
		Long: `Measure how fast ranks save and load a state that is cut over them, and what a save in
the background costs training steps. Every rank is a process.

  memcpy       all ranks copy their state within memory
  disk         all ranks write the bytes of their state to files and sync them:
               what the disk allows
  save         a checkpoint is saved, with checksums, and durable
  load         it is loaded; its files are in the system's cache
  reshard      it is loaded by one rank less
  async_block  how long a save in the background keeps the program waiting
  async_step   steps of the gpt of cohort bench step beside a save, and how much
               longer they take (slower_by_percent)

The times are those from a barrier of all ranks to the next. gb_per_s is --bytes by
the median time. Whatever is written to --dir is removed.`,
		Example: `  cohort bench ckpt --bytes 512M --ranks 2 --dir out/bench
  cohort bench ckpt --bytes 64M --ranks 1 --cases save,load --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(*bytes.values) != 1 {
				return usageError{fmt.Errorf("bench ckpt: --bytes: want one size, got %d", len(*bytes.values))}
			}
			o.Bytes = (*bytes.values)[0]
			if len(o.Cases) == 0 {
				o.Cases = bench.CkptCases()
			}
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench ckpt: %w", err)}
			}
			if o.Dir == "" {
				o.Dir = os.TempDir()
			}
			return f.onRanks(cmd.Context(), numRanks, numThreads, nil, func(ctx context.Context, g *dist.Group) error {
				return bench.Ckpt(ctx, g, o, f.emitter(cmd))
			})
		},
	}
	cmd.Flags().Var(&bytes, "bytes", "size of the state of all ranks together")
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "number of ranks")
	cmd.Flags().IntVar(&numThreads, "threads", 1, "number of threads of a rank")
	cmd.Flags().IntVar(&o.Reps, "reps", 5, "number of times that each case is measured")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory to write to (default: that of temporary files)")
	cmd.Flags().StringSliceVar(&o.Cases, "cases", nil, "cases to measure (default: all)")
	oneOf(cmd.Flags(), "dir", "DIR")
	return cmd
}
