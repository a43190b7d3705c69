// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/bench"
)

func newBenchSecurityCommand(f *benchFlags) *cobra.Command {
	o := bench.SecurityOptions{}
	cmd := &cobra.Command{
		Use:   "security",
		Short: "The cost of the token, of TLS, and of a stranger",
		Long: `Measure connections over loopback TCP with both ends in this process: bare ones,
those on which both ends have proven the job's token, as between ranks, and those
through TLS, as COHORT_ENCRYPT asks for between hosts. cpu_us is the processor time
of both ends together.

  connect     connect, and close
  round_trip  64 bytes there and back
  send        frames in one direction (gb_per_s)
  refuse      a stranger with another token, until it is turned away`,
		Example: "  cohort bench security --cases send --bytes 65536,16777216 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return usageError{fmt.Errorf("bench security: %w", err)}
			}
			return f.profiled(func() error { return bench.Security(cmd.Context(), o, f.emitter(cmd)) })
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Cases, "cases", bench.SecurityCases(), "`CASES` to measure, with commas between them")
	fl.StringSliceVar(&o.Links, "links", bench.SecurityLinks(), "`LINKS` to measure, with commas between them")
	fl.IntSliceVar(&o.Bytes, "bytes", []int{4096, 65536, 1 << 20, 16 << 20}, "`SIZES` of what is sent, in bytes")
	fl.IntVar(&o.Reps, "reps", 0, "repetitions in a round (default: as many as take 200 ms)")
	return cmd
}
