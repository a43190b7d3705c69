// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

func newPSStatusCommand() *cobra.Command {
	var p psServers
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask parameter servers how they are",
		Long: `Print for each server the number of its last log entry, the steps that it has
applied, the rows that were pulled and pushed, and the next step of each worker; and
for each table its rows on all servers, the keys that wait for their admission, the
rows that were removed, and the skew: the share of all pushes that the hundredth of
rows with most pushes had.`,
		Example: `  cohort ps status --at 127.0.0.1:7000,127.0.0.1:7001`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, end, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
			defer cancel()
			all, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				for _, s := range all {
					if err := printJSON(cmd.OutOrStdout(), s); err != nil {
						return err
					}
				}
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "server\tentry\tsteps\trows pulled\trows pushed\trefused\tlog\tworkers at step")
			for _, s := range all {
				var at []string
				for i, next := range s.Next {
					text := fmt.Sprint(next)
					if s.Left[i] {
						text = "left"
					}
					at = append(at, text)
				}
				if len(at) == 0 {
					at = []string{"-"}
				}
				fmt.Fprintf(w, "%d of %d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", s.Server, s.Servers, s.LSN, s.Step, s.PulledRows, s.PushedRows, s.Refused, inBytes(s.LogBytes), strings.Join(at, " "))
			}
			fmt.Fprintln(w)
			fmt.Fprintln(w, "table\trows\tin memory\ton disk\twaiting\tremoved\tskew")
			for i, name := range tableNamesOf(client) {
				var sum rows.Stats
				for _, s := range all {
					if i < len(s.Tables) {
						one := s.Tables[i].Stats
						sum.Rows += one.Rows
						sum.Bytes += one.Bytes
						sum.DiskBytes += one.DiskBytes
						sum.Young += one.Young
						sum.Removed += one.Removed
						sum.Skew = max(sum.Skew, one.Skew)
					}
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%.2f\n", name, sum.Rows, inBytes(sum.Bytes), inBytes(sum.DiskBytes), sum.Young, sum.Removed, sum.Skew)
			}
			for _, s := range all {
				if s.SnapshotProblem != "" {
					fmt.Fprintf(w, "\nthe last snapshot failed: %s\n", s.SnapshotProblem)
				}
			}
			return w.Flush()
		},
	}
	fl := cmd.Flags()
	p.flags(fl)
	fl.BoolVar(&asJSON, "json", false, "print one JSON object for each server")
	return cmd
}

func newPSCheckpointCommand() *cobra.Command {
	var p psServers
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Make parameter servers write snapshots",
		Long: `Make all servers write a snapshot into their directories. Pulls and pushes go on
meanwhile. The command returns when all snapshots are complete. A snapshot holds
only what changed since the last one, if there is one.`,
		Example: `  cohort ps checkpoint --at 127.0.0.1:7000,127.0.0.1:7001`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, end, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
			defer cancel()
			if err := client.Snapshot(ctx); err != nil {
				return err
			}
			all, err := client.Status(ctx)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s written\n", plural(len(all), "snapshot"))
			return err
		},
	}
	p.flags(cmd.Flags())
	return cmd
}
