// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchLoaderCommand(f *benchFlags) *cobra.Command {
	o := bench.LoaderOptions{}
	var threads int
	cmd := &cobra.Command{
		Use:   "loader",
		Short: "Training steps whose batches a loader makes, beside data in memory",
		Long: `Loader measures how much slower training steps are when workers make their
batches meanwhile than on one batch that is in memory as tensors. Blocks of
steps of both kinds take turns in one process; the figure is the median over
the pairs of blocks, with the interval that has it with 95 % confidence.

  gpt  windows of the Go standard library's source, tokenized for each batch
  cnn  images of 32x32, moved, mirrored and normalised for each batch

The models are those of cohort bench step. The last line is what the loader's
own statistics say.`,
		Example: "  cohort bench loader --model gpt --workers 4 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench loader: %w", err)}
			}
			if err := setThreads(threads); err != nil {
				return err
			}
			return f.profiled(func() error {
				r, err := bench.Loader(cmd.Context(), o)
				if err != nil {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	threadsFlag(cmd, &threads)
	fl := cmd.Flags()
	fl.StringVar(&o.Model, "model", "gpt", "`name` of the model: gpt or cnn")
	fl.StringVar(&o.DType, "dtype", "float32", "`type` that is computed in: float32, or bfloat16 by autocast")
	fl.IntVar(&o.Workers, "workers", 4, "`goroutines` that make batches; 0 makes them in the step")
	fl.IntVar(&o.Prefetch, "prefetch", 0, "`batches` made ahead (default the loader's own)")
	fl.IntVar(&o.Pairs, "pairs", 30, "`pairs` of blocks to measure")
	fl.IntVar(&o.Steps, "steps", 10, "`steps` of a block")
	return cmd
}
