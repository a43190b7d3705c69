// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchShardCommand(f *benchFlags) *cobra.Command {
	o := bench.ShardOptions{}
	var numRanks, numThreads int
	cmd := &cobra.Command{
		Use:   "shard",
		Short: "Training steps under each strategy: time, memory and bytes between ranks",
		Long: `Measure training steps of a model that is spread over ranks. Every rank is a process
with a batch of its own, but ranks that differ only on an axis pp, cp or tp share one.

  single  every rank trains a model of its own: what the machine allows without
          communication
  dp      one process with a group of threads for each rank; other ranks wait
  ddp     a replica on every rank
  zero1   a replica on every rank, and the optimizer state of some parameters
  diloco  every rank is an island, and they exchange every H steps: diloco:10
  fsdp    a shard of each parameter, its gradient and its state on every rank
  hsdp    two ranks share a replica among themselves
  tp      the ranks share each module
  pp      each rank has a stage or two of a pipeline; pp:zbv names a schedule
  ep      the ranks share the experts of the model moe
  cp      the ranks share each sequence

A mesh is written as its axes with their sizes, of pp, replicate, fsdp, ep, cp and tp,
such as fsdp2.tp2 or pp2:zbv.tp2.

  gpt    4 layers of width 256 with 8 heads, 8 sequences of 128 bytes, AdamW
  mlp    784-1024-1024-10, batch 256, SGD
  llama  4 layers of width 256 with 8 heads, 8 sequences of 128 bytes, AdamW
  moe    llama with 8 experts of half the size in each layer, 2 for a token

The times are those of rank 0, the bytes those of the rank that has most. With --json:

  state_bytes   parameters, gradients and optimizer state of a rank
  peak_bytes    the most that a rank's tensors held at once in a step
  sent_bytes    data that a rank gave to others in a step: what it sent, and in
                shared memory what others read of its data and what it wrote
                into theirs
  exposed_us    how long a rank stood still for communication in a step (the
                median; of diloco, which stands still in few steps, the mean)
  predicted_us  what a step would take if ranks that share samples divided the
                work evenly and messages took no time, by times of one rank
  bubble        of a pipeline: the part of the ranks' time for which they stood
                still; predicted_bubble is that of the schedule

The fields predicted_state_bytes, predicted_peak_bytes and predicted_sent_bytes are what
was known before the first step, or -1.`,
		Example: `  cohort bench shard --model gpt --strategy ddp --ranks 2 --json
  cohort bench shard --strategy pp:zbv --ranks 2 --microbatches 8
  cohort bench shard --strategy fsdp2.tp2 --ranks 4`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench shard: %w", err)}
			}
			if err := o.CheckRanks(numRanks); err != nil {
				return usageError{fmt.Errorf("bench shard: %w", err)}
			}
			return f.onRanks(cmd.Context(), numRanks, numThreads, nil, func(ctx context.Context, g *dist.Group) error {
				r, err := bench.Shard(ctx, g, o)
				if err != nil || g.Rank() != 0 {
					return err
				}
				return f.emitter(cmd)(r)
			})
		},
	}
	cmd.Flags().StringVar(&o.Model, "model", "gpt", "model to train")
	cmd.Flags().StringVar(&o.Strategy, "strategy", "ddp", "how the model is spread over the ranks")
	cmd.Flags().StringVar(&o.DType, "dtype", "float32", "number type that passes compute in")
	cmd.Flags().IntVar(&o.Batch, "batch", 0, "samples in a step of a rank (default: 8 or 256, by the model)")
	cmd.Flags().IntVar(&o.Microbatches, "microbatches", 0, "number of passes that divide the samples of a step (default: 1, and 4 in a pipeline)")
	cmd.Flags().IntVar(&o.Steps, "steps", 30, "number of steps to measure")
	cmd.Flags().IntVar(&numRanks, "ranks", 2, "number of ranks")
	cmd.Flags().IntVar(&numThreads, "threads", 1, "number of threads of a rank")
	oneOf(cmd.Flags(), "model", bench.ShardModels()...)
	oneOf(cmd.Flags(), "strategy", bench.ShardStrategies()...)
	oneOf(cmd.Flags(), "dtype", "float32", "bfloat16")
	return cmd
}
