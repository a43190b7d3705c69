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
	"github.com/cohort-ml/cohort/tensor"
)

// collectivesFlags are the flags of cohort bench collectives.
type collectivesFlags struct {
	*benchFlags
	bench.CollectivesOptions
	numRanks           int
	deterministic      bool
	backend, transport string
}

func newBenchCollectivesCommand(f *benchFlags) *cobra.Command {
	o := collectivesFlags{benchFlags: f}
	cmd := &cobra.Command{
		Use:   "collectives",
		Short: "Collectives between rank processes",
		Long: `Measure operations of all ranks on tensors of several sizes. The tensors are in
memory that the ranks of a node share (as the gradients of data parallelism are),
and in memory of each rank's own.

A time is that of a loop of calls, with a barrier at its end, divided by the
number of calls; the median of three loops counts. p99 is of single calls on
rank 0.

A size is that of the tensor for all_reduce, broadcast, reduce and sendrecv (a
round trip between ranks 0 and 1); of what each rank puts in for all_gather and
gather; and of the whole source, of which every rank gets a part, for
reduce_scatter, scatter, all_to_all and all_to_all_skewed, where rank 0 gets three
quarters. gb_per_s is the size divided by the time.

Two operations are not part of --ops all and must be named:
  late        rank 0 comes 100 ms late to an all_reduce of 1 MiB and to a
              barrier; wait_cpu_us is the processor time that the others spend
              on waiting
  raw_socket  both of 2 ranks send through one TCP connection at the same time,
              without any protocol: the most that --transport tcp can reach

Started by "cohort run", or with the variables that it sets, the command measures
the ranks of that job, which may be on several nodes. With --backend mpi, that is
the job of mpirun; tools/mpi_collectives.c measures the same MPI without Cohort.`,
		Example: `  cohort bench collectives --ranks 2 --ops all_reduce --bytes 4,64M --json
  cohort bench collectives --ranks 4 --ops late
  cohort bench collectives --transport tcp --ops raw_socket --bytes 64M`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	fl := cmd.Flags()
	fl.IntVar(&o.numRanks, "ranks", 2, "number of ranks")
	fl.StringVar(&o.backend, "backend", "native", "implementation of the collectives: Cohort's own (native), PyTorch's (gloo), or an MPI (mpi), whose mpirun has started the command")
	fl.StringVar(&o.transport, "transport", "auto", "how the ranks are connected")
	fl.StringSliceVar(&o.Ops, "ops", []string{"all"}, "`OPERATIONS` to measure, with commas between them")
	o.Bytes = bench.DefaultBytes("")
	fl.Var(&sizes{values: &o.Bytes}, "bytes", "`SIZES` of a rank's tensor in bytes, such as 4,64K,1M (K, M and G are powers of 1024)")
	fl.StringVar(&o.DType, "dtype", "float32", "`TYPE` of the elements")
	fl.StringSliceVar(&o.Memory, "memory", bench.MemoryKinds(), "`KINDS` of memory, with commas between them")
	fl.BoolVar(&o.deterministic, "deterministic", false, "always sum in the order of ranks: the same bits on every transport")
	fl.IntVar(&o.Reps, "reps", 0, "number of calls in a loop (default: as many as take 50 ms)")
	fl.DurationVar(&o.LateBy, "late-by", 100*time.Millisecond, "how late rank 0 is in the operation late")
	oneOf(fl, "backend", "native", "gloo", "mpi")
	oneOf(fl, "transport", "auto", "shm", "unix", "tcp", "tls")
	return cmd
}

func (o *collectivesFlags) run(cmd *cobra.Command) error {
	o.Ops = bench.ExpandOps(o.Ops)
	if !cmd.Flags().Changed("bytes") {
		o.Bytes = bench.DefaultBytes(o.DType)
	}
	if err := errors.Join(bench.CheckBackend(o.backend), bench.CheckTransport(o.transport), o.Validate(), o.CheckRanks(o.numRanks)); err != nil {
		return usageError{fmt.Errorf("bench collectives: %w", err)}
	}
	var env []string
	if cmd.Flags().Changed("transport") {
		if now := envvar.Transport.Get("auto"); launch.IsRank() && now != o.transport {
			return usageError{fmt.Errorf("bench collectives: --transport %s in a rank of a job whose %s is %s: set that", o.transport, envvar.Transport, now)}
		}
		env = append(env, envvar.Transport.Assign(o.transport))
	}
	measure := func(ctx context.Context, g *dist.Group) error {
		emit := func(bench.Result) error { return nil }
		if g.Rank() == 0 {
			emit = o.emitter(cmd)
		}
		if o.deterministic {
			var err error
			if g, err = g.Split(ctx, 0, g.Rank(), dist.WithDeterministic()); err != nil {
				return err
			}
		}
		return bench.Collectives(ctx, g, o.CollectivesOptions, emit)
	}
	if o.backend != "mpi" {
		return o.onRanks(cmd.Context(), o.numRanks, 1, env, measure, dist.WithBackend(o.backend))
	}
	if _, started := envvar.MPITask(); !started {
		return usageError{errors.New("bench collectives: --backend mpi: the launcher of an MPI starts the ranks: mpirun -n 2 cohort bench collectives --backend mpi")}
	}
	if err := tensor.SetNumThreads(1); err != nil {
		return err
	}
	return dist.Main(measure, dist.WithBackend(o.backend))(cmd.Context())
}
