// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchStepCommand(f *benchFlags) *cobra.Command {
	o := bench.StepOptions{DType: "float32"}
	var threads int
	cmd := &cobra.Command{
		Use:   "step",
		Short: "Training steps of a model in one process",
		Long: `Measure whole training steps: forward, backward, optimizer.

  mlp       784-1024-1024-10, batch 256, SGD
  gpt       4 layers of width 256 with 8 heads, 8 sequences of 128 bytes, AdamW
  cnn       4 convolutions with batch norm, 64 images of 32x32, SGD
  resnet50  4 images of 224x224, SGD

With --json the result also says what the garbage collector did in the measured
steps: gc_cpu_share is its share of the process's processor time, num_gc the number
of collections, allocs_per_step and alloc_bytes_per_step what the steps put on its
heap. Tensors are not on that heap. Some hundred steps give the share of a long
run.`,
		Example: "  cohort bench step --model gpt --threads 2 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench step: %w", err)}
			}
			if err := setThreads(threads); err != nil {
				return err
			}
			return f.profiled(func() error {
				r, err := bench.Step(cmd.Context(), o)
				if err != nil {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	threadsFlag(cmd, &threads)
	cmd.Flags().StringVar(&o.Model, "model", "gpt", "model to train")
	cmd.Flags().StringVar(&o.DType, "dtype", o.DType, "number type that passes compute in")
	cmd.Flags().IntVar(&o.Batch, "batch", 0, "samples in a step (default: 256, 8, 64 or 4, by the model)")
	cmd.Flags().IntVar(&o.Steps, "steps", 30, "number of steps to measure")
	oneOf(cmd.Flags(), "model", "mlp", "gpt", "cnn", "resnet50")
	oneOf(cmd.Flags(), "dtype", "float32", "bfloat16")
	return cmd
}
