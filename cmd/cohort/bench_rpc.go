// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/bench"
	"github.com/cohort-ml/cohort/internal/envvar"
)

func newBenchRPCCommand(f *benchFlags) *cobra.Command {
	var transport string
	o := bench.RPCOptions{}
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Remote calls between two processes of one thread",
		Long: fmt.Sprintf(`Measure package rpc between two processes on this host.

  noop   calls without content, one after the other
  add    the sum of two tensors of 2 numbers
  async  many such sums, started without waiting for each other
  echo   a tensor there and back; gb_per_s counts both directions
  ps     pull %d rows of a table of %d by %d, and push gradients for them`, bench.PSBatch, bench.PSRows, bench.PSDim),
		Example: `  cohort bench rpc
  cohort bench rpc --cases noop,async --transport tcp --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(bench.CheckTransport(transport), o.Validate()); err != nil {
				return usageError{fmt.Errorf("bench rpc: %w", err)}
			}
			env := []string{envvar.Transport.Assign(transport)}
			return f.onRanks(cmd.Context(), 2, 1, env, func(ctx context.Context, g *dist.Group) error {
				return bench.RPC(ctx, g, o, f.emitter(cmd))
			})
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Cases, "cases", bench.RPCCases(), "`CASES` to measure, with commas between them")
	fl.IntSliceVar(&o.Bytes, "bytes", []int{1 << 20, 16 << 20, 64 << 20}, "`SIZES` of the echoes, in bytes")
	fl.IntVar(&o.Calls, "calls", 2000, "number of calls of noop and add")
	fl.IntVar(&o.Async, "together", 5000, "number of asynchronous calls under way at the same time")
	fl.StringVar(&transport, "transport", "auto", "what the calls go through")
	oneOf(fl, "transport", "auto", "shm", "unix", "tcp", "tls")
	return cmd
}
