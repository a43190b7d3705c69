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
		Long: `Store measures operations a second of a store in a process of its own, over
loopback TCP. Every client has one call under way at a time, but for the case set,
which does not wait for each answer (PyTorch's set does not either); set_wait does.

The clients of a process can share a connection, as the goroutines of a rank do,
or have their own, as ranks do; --processes shares the clients out over several.

With --wire pytorch client and server speak PyTorch's protocol, and --addr is that of
a store of PyTorch's, or of cohort store, to measure instead of one of its own.`,
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
	fl.StringSliceVar(&o.Ops, "ops", bench.StoreOps(), "`operations` to measure")
	fl.IntSliceVar(&o.Clients, "clients", []int{1, 64}, "`numbers` of clients")
	fl.StringSliceVar(&o.Connections, "connections", bench.ConnectionKinds(), "`kinds` of connections: own, shared")
	fl.IntVar(&o.Processes, "processes", 1, "`number` of processes that the clients are shared out over")
	fl.StringVar(&o.Wire, "wire", "cohort", "`protocol`: cohort or pytorch")
	fl.StringVar(&o.Addr, "addr", "", "`host:port` of a server that speaks PyTorch's protocol")
	fl.IntVar(&o.Bytes, "bytes", 64, "`size` of a value")
	fl.DurationVar(&o.Time, "time", 500*time.Millisecond, "`time` of a round; the median of three counts")
	return cmd
}
