// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/internal/envvar"
)

func newBenchPSCommand(f *benchFlags) *cobra.Command {
	var transport string
	o := bench.ServingOptions{}
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Rows of a parameter server, pulled and pushed by clients",
		Long: `Measure package rpc/ps: processes that serve one table, and client processes. Rates
are those of all clients together. bytes are the keys and values of a request and its answer.

  pull       rows of random keys
  push       gradients for random keys, until the servers have them
  pull_push  both, one after the other
  skew       both, for keys of a Zipf distribution with exponent 1.05
  bags       sums of random rows, which the servers add up
  batched    gradients of all clients as one update, answered with the new rows
  recover    a server that comes back with all rows from its log`,
		Example: `  cohort bench ps
  cohort bench ps --servers 2 --clients 4 --dim 16 --rows 10000000 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(bench.CheckTransport(transport), o.Validate()); err != nil {
				return usageError{fmt.Errorf("bench ps: %w", err)}
			}
			env := []string{envvar.Transport.Assign(transport)}
			return f.onRanks(cmd.Context(), o.Servers+o.Clients, 1, env, func(ctx context.Context, g *dist.Group) error {
				return bench.Serving(ctx, g, o, f.emitter(cmd))
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Cases, "cases", bench.ServingCases(), "`CASES` to measure, with commas between them")
	fl.IntVar(&o.Servers, "servers", 1, "number of servers")
	fl.IntVar(&o.Clients, "clients", 1, "number of clients")
	fl.IntVar(&o.Dim, "dim", 64, "width of the rows")
	fl.IntVar(&o.Rows, "rows", 1_000_000, "rows of the table")
	fl.IntVar(&o.Batch, "batch", 4096, "rows of a request")
	fl.IntVar(&o.Bag, "bag", 32, "rows of a bag")
	fl.IntVar(&o.Steps, "steps", 200, "requests of each client")
	fl.StringVar(&o.Dir, "dir", os.TempDir(), "`DIR` of the log, for the case recover")
	fl.StringVar(&transport, "transport", "auto", "what the requests go through")
	oneOf(fl, "transport", "auto", "shm", "unix", "tcp", "tls")
	return cmd
}
