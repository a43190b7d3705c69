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
		Short: "Training steps with a data loader, beside steps with data in memory",
		Long: `Measure how much slower training steps are if workers prepare their batches at the
same time than on one batch that is in memory as tensors. Blocks of steps of both
kinds take turns in one process. The result is the median over the pairs of
blocks, with its 95 % confidence interval.

  gpt  windows of the Go standard library's source, tokenized for each batch
  cnn  images of 32x32, moved, mirrored and normalised for each batch

The models are those of cohort bench step. The last line has the loader's own
statistics.`,
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
	fl.StringVar(&o.Model, "model", "gpt", "model to train")
	fl.StringVar(&o.DType, "dtype", "float32", "number type that passes compute in")
	fl.IntVar(&o.Workers, "workers", 4, "number of goroutines that prepare batches; 0: each step prepares its own")
	fl.IntVar(&o.Prefetch, "prefetch", 0, "number of batches prepared ahead (default: the loader's own)")
	fl.IntVar(&o.Pairs, "pairs", 30, "number of pairs of blocks to measure")
	fl.IntVar(&o.Steps, "steps", 10, "steps in a block")
	oneOf(fl, "model", "gpt", "cnn")
	oneOf(fl, "dtype", "float32", "bfloat16")
	return cmd
}
