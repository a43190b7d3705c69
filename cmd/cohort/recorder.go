// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/monitor/dashboard"
)

func newRecorderCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recorder [DIR|FILE...|ADDRESS]",
		Short: "Show what the ranks of a failed, hanging or running job do",
		Long: `Read the dumps of the ranks' flight recorders and print one view of the job: in
which call the ranks wait and since when, which ranks have not come to that call
and what they do instead, which calls differ between ranks, and which ranks are
slow. The first line names the ranks that the others wait for. Dumps are files
rank-N.json; arguments are such files, or a directory that has them.

A group that fails writes the dumps. The report of cohort run names their
directory (in TMPDIR, where a later job removes it after a week). Ranks that are
started by hand write to the directory in COHORT_RECORDER_DIR. When cohort run gets
SIGUSR1, it writes and prints the dumps of the running job and the job goes on:
that shows where a job hangs.

Of a job that runs with --dashboard, recorder asks the ranks, and the job goes on.
ADDRESS is what that job has printed, with its token. Without an argument, recorder
asks the job of this user on this machine that began last.`,
		Example: `  cohort recorder
  cohort recorder out/flight
  cohort recorder --json node0/rank-0.json node1/rank-1.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if slices.ContainsFunc(args, isPageAddress) && len(args) > 1 {
				return usageError{errors.New("recorder asks one job: give its address alone")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || isPageAddress(args[0]) {
				return askRecorder(cmd, args, asJSON)
			}
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
				for _, line := range report.Table() {
					b.WriteString(line + "\n")
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

// isPageAddress reports whether an argument is the address of a job's page.
func isPageAddress(arg string) bool { return strings.Contains(arg, "://") }

// askRecorder asks the ranks of a job that runs.
func askRecorder(cmd *cobra.Command, args []string, asJSON bool) error {
	address := ""
	if len(args) == 1 {
		address = args[0]
	} else {
		jobs, err := dashboard.Jobs()
		if err != nil {
			return fmt.Errorf("recorder: %w", err)
		}
		if len(jobs) == 0 {
			return usageError{errors.New("recorder: no job of this user runs on this machine: give the directory of a job's dumps, or the files (the report of cohort run names it), or the address that a job with --dashboard has printed")}
		}
		if address = jobs[0].URL; address == "" {
			return fmt.Errorf("recorder: %s runs without --dashboard, so it cannot be asked here: kill -USR1 %d has its launcher print the same", visible.Text(jobs[0].Title), jobs[0].PID)
		}
	}
	c, err := dashboard.Dial(address)
	if err != nil {
		return usageError{err}
	}
	defer c.Close()
	waits, err := c.Recorder(cmd.Context())
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(waits.Report)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), visible.Text(waits.Text))
	return err
}
