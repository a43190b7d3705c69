// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchStoreCommand(f *benchFlags) *cobra.Command {
	o := bench.StoreOptions{}
	cmd := &cobra.Command{
		Use:   "store",
		Short: "The key-value store over TCP, by number of clients",
		Long: `Measure operations a second of a store in a process of its own, over loopback TCP.
Every client has one call under way at a time. The operation set is an exception:
it does not wait for each answer (neither does PyTorch's set); set_wait does.

The clients of a process can share a connection, as the goroutines of a rank do,
or have one each, as ranks do. --processes distributes the clients over several
processes.

With --wire pytorch, client and server speak PyTorch's protocol, and --addr names a
store of PyTorch's, or of cohort store, to measure in place of one of its own.`,
		Example: `  cohort bench store --ops get --clients 1,64 --json
  cohort bench store --wire pytorch --clients 1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Wire == "pytorch" && !cmd.Flags().Changed("ops") {
				o.Ops = slices.DeleteFunc(bench.StoreOps(), func(op string) bool { return op == "set" })
			}
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench store: %w", err)}
			}
			return f.onRanks(cmd.Context(), o.Processes+1, 1, nil, func(ctx context.Context, g *dist.Group) error {
				var err error
				if g.Rank() == o.Processes {
					err = bench.ServeStore(ctx, g.Store(), o)
				} else {
					err = bench.Store(ctx, g.Store(), g.Rank(), o, f.emitter(cmd))
				}
				if err != nil {
					return err
				}
				return g.Barrier(ctx) // rank 0 has the job's store
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Ops, "ops", bench.StoreOps(), "`OPERATIONS` to measure, with commas between them")
	fl.IntSliceVar(&o.Clients, "clients", []int{1, 64}, "numbers of clients, with commas between them")
	fl.StringSliceVar(&o.Connections, "connections", bench.ConnectionKinds(), "`KINDS` of connections, with commas between them")
	fl.IntVar(&o.Processes, "processes", 1, "number of processes that the clients are distributed over")
	fl.StringVar(&o.Wire, "wire", "cohort", "protocol to speak")
	fl.StringVar(&o.Addr, "addr", "", "measure the server at `HOST:PORT`, which speaks PyTorch's protocol (default: a server of its own)")
	fl.IntVar(&o.Bytes, "bytes", 64, "size of a value in bytes")
	fl.DurationVar(&o.Time, "time", 500*time.Millisecond, "time of a round; the median of three rounds counts")
	oneOf(fl, "wire", "cohort", "pytorch")
	return cmd
}
