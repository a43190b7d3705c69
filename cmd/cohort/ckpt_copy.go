// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/internal/visible"
	ckptproof "github.com/cohort-ml/cohort/train/proof"
)

func newCkptCopyCommand() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "cp CKPT RUN",
		Short: "Copy a Cohort checkpoint to another directory or store",
		Long: `Copy a checkpoint of Cohort into another run, between directories and stores. Every byte
is compared with its checksum on the way, and the copy appears whole or not at all.
With --all all checkpoints of a run are copied, those that are there already left
alone. Other formats have no checksums and no commit: convert them.`,
		Example: `  cohort ckpt cp out/lm s3://bucket/lm
  cohort ckpt cp --all s3://bucket/lm out/lm`,
		Args: numArgs(2, "a checkpoint and the run to copy it to"),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := openCopies(cmd, args[0], all)
			if err != nil {
				return err
			}
			to, err := locateOutput(args[1])
			if err != nil {
				return err
			}
			if to.Inside == nil {
				return usageError{fmt.Errorf("ckpt cp: %s is a file, not the folder of a run", args[1])}
			}
			bar := newProgressBar(cmd.ErrOrStderr())
			defer bar.end()
			var done, total int64
			for _, c := range list {
				for _, f := range c.Files {
					total += f.Bytes
				}
			}
			copied := []string{}
			for _, c := range list {
				err := c.Copy(cmd.Context(), to.Inside, func(n int64) { bar.show(done+n, total) }, ckptproof.FileName)
				if all && errors.Is(err, fs.ErrExist) {
					continue
				}
				if err != nil {
					return err
				}
				for _, f := range c.Files {
					done += f.Bytes
				}
				copied = append(copied, checkpoint.StepName(c.Step))
			}
			bar.end()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"to": to.Text, "copied": copied, "bytes": done})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s copied, %s\n", visible.Text(to.Text), plural(len(copied), "checkpoint"), inBytes(done))
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "copy all checkpoints of a run that the other lacks")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// openCopies returns the checkpoints that are copied.
func openCopies(cmd *cobra.Command, arg string, all bool) ([]*checkpoint.Checkpoint, error) {
	if !all {
		in, err := openInput(cmd, arg)
		if err != nil {
			return nil, err
		}
		defer in.Close() // its sections, which Copy does not use
		if in.Checkpoint == nil {
			return nil, fmt.Errorf("%s is a %s: convert it (cohort ckpt convert), or copy its files", in.Where, in.Kind)
		}
		return []*checkpoint.Checkpoint{in.Checkpoint}, nil
	}
	run, err := locateRun(cmd.Context(), arg)
	if err != nil {
		return nil, err
	}
	steps, err := checkpoint.Steps(cmd.Context(), run)
	if err != nil {
		return nil, err
	}
	var list []*checkpoint.Checkpoint
	for i := len(steps) - 1; i >= 0; i-- { // the oldest first, so that the newest there is never an old one for long
		c, err := checkpoint.Open(cmd.Context(), run, checkpoint.StepName(steps[i]))
		var damaged *checkpoint.DamagedError
		switch {
		case errors.As(err, &damaged) || errors.Is(err, checkpoint.ErrNone):
			fmt.Fprintf(cmd.ErrOrStderr(), "cohort: passed over: %s\n", visible.Text(err.Error()))
		case err != nil:
			return nil, err
		default:
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, &anyformat.UnknownError{Location: arg, Problem: "has no good checkpoint"}
	}
	return list, nil
}
