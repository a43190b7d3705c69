// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
)

func newBenchCollectivesCommand(f *benchFlags) *cobra.Command {
	var numRanks int
	var deterministic bool
	var backend, transport string
	o := bench.CollectivesOptions{}
	cmd := &cobra.Command{
		Use:   "collectives",
		Short: "Collectives between rank processes",
		Long: `Collectives measures operations of all ranks on tensors of several sizes, in
memory that the ranks of a node share (as the gradients of data parallelism are)
and in memory of their own. A time is that of a loop, closed by a barrier, by the
number of its calls, the median of three loops; p99 is of single calls on rank 0.

A size is that of the tensor (all_reduce, broadcast, reduce, sendrecv, which is a
round trip between ranks 0 and 1), of what each rank puts in (all_gather, gather),
or of the whole source, of which every rank gets a part (reduce_scatter, scatter,
all_to_all). gb_per_s is the size by the time.

Two cases must be asked for by name, and are not among --ops all:
  late        rank 0 comes 100 ms late to an all_reduce of 1 MiB and to a barrier;
              wait_cpu_us is the processor time that waiting took the others
  raw_socket  both of 2 ranks send through one TCP connection at once, without any
              protocol: what --transport tcp can reach at best

Started by "cohort run", or with the variables that it sets, it measures the ranks
of that job, which may be on several nodes.`,
		Example: `  cohort bench collectives --ranks 2 --ops all_reduce --bytes 4,67108864 --json
  cohort bench collectives --ranks 4 --ops late
  cohort bench collectives --transport tcp --ops all_reduce,raw_socket --bytes 64M`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Ops = bench.ExpandOps(o.Ops)
			if !cmd.Flags().Changed("bytes") {
				o.Bytes = bench.DefaultBytes(o.DType)
			}
			if err := errors.Join(bench.CheckBackend(backend), bench.CheckTransport(transport), o.Validate(), o.CheckRanks(numRanks)); err != nil {
				return usageError{fmt.Errorf("bench collectives: %w", err)}
			}
			var env []string
			if cmd.Flags().Changed("transport") {
				if now := envvar.Transport.Get("auto"); launch.IsRank() && now != transport {
					return usageError{fmt.Errorf("bench collectives: --transport %s in a rank of a job whose %s is %s: set that", transport, envvar.Transport, now)}
				}
				env = append(env, envvar.Transport.Assign(transport))
			}
			return f.onRanks(cmd.Context(), numRanks, 1, env, func(ctx context.Context, g *dist.Group) error {
				emit := func(bench.Result) error { return nil }
				if g.Rank() == 0 {
					emit = f.emitter(cmd)
				}
				if deterministic {
					var err error
					if g, err = g.Split(ctx, 0, g.Rank(), dist.WithDeterministic()); err != nil {
						return err
					}
				}
				return bench.Collectives(ctx, g, o, emit)
			}, dist.WithBackend(backend))
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&numRanks, "ranks", 2, "`number` of ranks")
	fl.StringVar(&backend, "backend", "native", "`name` of what does the collectives: native, or gloo, PyTorch's")
	fl.StringVar(&transport, "transport", "auto", "`way` between the ranks: auto, shm, unix, tcp or tls")
	fl.StringSliceVar(&o.Ops, "ops", []string{"all"}, "`operations` to measure")
	o.Bytes = bench.DefaultBytes("")
	fl.Var(&sizes{values: &o.Bytes}, "bytes", "`sizes` of a rank's tensor, in bytes, or with K, M or G in powers of 1024")
	fl.StringVar(&o.DType, "dtype", "float32", "`type` of the elements")
	fl.StringSliceVar(&o.Memory, "memory", bench.MemoryKinds(), "`kinds` of memory: shared, private")
	fl.BoolVar(&deterministic, "deterministic", false, "sum in the order of ranks always: the same bits on every transport")
	fl.IntVar(&o.Reps, "reps", 0, "`calls` in a loop (default as many as take 50 ms)")
	fl.DurationVar(&o.LateBy, "late-by", 100*time.Millisecond, "`time` by which rank 0 is late in the case late")
	return cmd
}
