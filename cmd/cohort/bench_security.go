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
		Short: "What the token and TLS cost, and what a stranger costs",
		Long: `Security measures connections over loopback TCP with both ends in this process:
bare ones, those on which both ends have proven the job's token, as between ranks,
and those through TLS, as COHORT_ENCRYPT wants them between hosts. cpu_us is the
processor time of both ends together.

The cases: connect (and close), round_trip of 64 bytes, send (gb_per_s of frames
one way), refuse (a stranger with another token, until it is turned away).`,
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
	fl.StringSliceVar(&o.Cases, "cases", bench.SecurityCases(), "`cases` to measure")
	fl.StringSliceVar(&o.Links, "links", bench.SecurityLinks(), "`links` to measure: bare, token, tls")
	fl.IntSliceVar(&o.Bytes, "bytes", []int{4096, 65536, 1 << 20, 16 << 20}, "`sizes` of what is sent")
	fl.IntVar(&o.Reps, "reps", 0, "`repetitions` of a round (default as many as take 200 ms)")
	return cmd
}
