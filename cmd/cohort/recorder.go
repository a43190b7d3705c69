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
		Short: "Show what the ranks of a failed or hanging job were doing",
		Long: `Read the dumps of the ranks' flight recorders and print one view of the job: in
which call the ranks wait and since when, which ranks have not come to that call
and what they do instead, which calls differ between ranks, and which ranks are
slow. The first line names the ranks that the others wait for. Dumps are files
rank-N.json; arguments are such files, or a directory that has them.

A group that fails writes the dumps. The report of cohort run names their
directory (in TMPDIR, where a later job removes it after a week). Ranks that are
started by hand write to the directory in COHORT_RECORDER_DIR. When cohort run gets
SIGUSR1, it writes and prints the dumps of the running job and the job goes on:
that shows where a job hangs.`,
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
				// The dumps of the other ranks are still useful.
				fmt.Fprintf(cmd.ErrOrStderr(), "cohort: %v\n", err)
			}
			report := flightlog.Merge(dumps)
			if !asJSON {
				var b strings.Builder // with text that ranks wrote
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole report as one JSON object")
	return cmd
}
