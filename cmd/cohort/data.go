// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
)

func newDataCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "data COMMAND",
		Short: "Check which samples a run was trained on",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDataCheckCommand())
	return cmd
}

func newDataCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check RUN",
		Short: "Check that each step of a run took the samples that it should",
		Long: `Read the order logs of a run: files rank-N.log in the directory order of RUN, to
which every rank adds a line for each step. The command merges the logs of all
ranks and all starts of the job, computes the order of the samples again from its
seed, and compares. It checks the samples of each step, of all ranks together;
that each step follows the one before, across crashes and changes of the number of
ranks, so that every sample is taken once in an epoch; and that the newest
checkpoint is where the logs say.

The command says which steps were done again after a crash. For each mistake (a
step with other samples, a log that is missing, changed or cut off) it names file,
line and rank, and fails. If the machines have disks of their own, copy the logs
of all ranks to one directory first.`,
		Example: `  cohort data check out/lm
  cohort data check --json out/lm`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("data check needs the directory of one run, got %d", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			report, err := checkRun(cmd.Context(), args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				if err := enc.Encode(report); err != nil {
					return err
				}
			} else if _, err := io.WriteString(cmd.OutOrStdout(), report.String()); err != nil {
				return err
			}
			return report.Err()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as one JSON object")
	return cmd
}

// checkRun checks the logs of a run against its newest checkpoint. dir is the
// directory of the run, or that of its logs, which has no checkpoint.
func checkRun(ctx context.Context, dir string, stderr io.Writer) (*data.OrderReport, error) {
	logs := filepath.Join(dir, data.OrderDir)
	if _, err := os.Stat(logs); errors.Is(err, os.ErrNotExist) && filepath.Base(dir) == data.OrderDir {
		return data.CheckOrder(dir, data.CheckOptions{})
	}
	ck, damaged, err := checkpoint.Latest(ctx, storage.Dir(dir))
	for _, d := range damaged {
		fmt.Fprintf(stderr, "cohort: passed over: %v\n", d)
	}
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return data.CheckOrder(logs, data.CheckOptions{})
	case err != nil:
		return nil, err
	}
	if !ck.HasProgress() {
		if _, err := os.Stat(logs); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s is of a program with a loop of its own (it has no value %q): that program kept no log of its samples in %s", ck.Path, checkpoint.ProgressValue, logs)
		}
		return data.CheckOrder(logs, data.CheckOptions{})
	}
	progress, err := ck.ReadProgress()
	if err != nil {
		return nil, err
	}
	o := data.CheckOptions{Steps: progress.Step}
	if err := json.Unmarshal(progress.Loader, &o.State); err != nil {
		return nil, fmt.Errorf("the loader's state in %s: %w", ck.Path, err)
	}
	return data.CheckOrder(logs, o)
}
