// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newRecorderCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recorder DIR|FILE...",
		Short: "Say where the ranks of a job that failed or hangs are, from their flight recorders",
		Long: `Recorder reads the dumps of the ranks' flight recorders, files rank-N.json of a
directory or files by name, and prints one view of the job: which call the ranks
wait in and since when, which ranks did not come to it and what they do instead,
calls that differ between ranks, and who is slow. The first line names the ranks
that are waited for.

The dumps are written when a group fails, into the directory that the report of
cohort run names (in TMPDIR, where a later job removes them after a week), or
that COHORT_RECORDER_DIR names to ranks that are started by hand. A running job
under cohort run writes and prints them when the launcher gets SIGUSR1; a hang
shows itself so without ending it.`,
		Example: `  cohort recorder out/flight
  cohort recorder --json node0/rank-0.json node1/rank-1.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("recorder needs the directory of a job's dumps, or the files: the report of cohort run names it")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dumps, err := flightlog.Load(args...)
			if err != nil {
				if len(dumps) == 0 {
					return err
				}
				// Those of the other ranks are worth more than nothing.
				fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %v\n", err)
			}
			report := flightlog.Merge(dumps)
			if !asJSON {
				var b strings.Builder // of what ranks wrote
				if err := report.WriteText(&b); err != nil {
					return err
				}
				_, err := io.WriteString(cmd.OutOrStdout(), visible.Text(b.String()))
				return err
			}
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(report)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON, in full")
	return cmd
}
