// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/visible"
)

func newCkptMergeCommand() *cobra.Command {
	var asJSON bool
	var shardBytes []int
	cmd := &cobra.Command{
		Use:   "merge CKPT OUT | merge RUN",
		Short: "Put together what ranks have written",
		Long: `Write the model of a checkpoint as a folder of whole tensors, with its configuration and
its tokenizer: what transformers opens. It does the same as cohort ckpt convert --to
huggingface, whatever ranks have saved the checkpoint. OUT must not exist, or be an
empty folder; it appears whole or not at all.

With a run alone, make a checkpoint of the parts that ranks have each saved alone when the
job failed: of the newest step whose parts are whole tensors. A job that resumes does so by
itself. If no parts are whole, the command says what is missing, and changes nothing.`,
		Example: "  cohort ckpt merge out/lm hub\n  cohort ckpt merge out/lm",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return nil
			}
			return numArgs(2, "a checkpoint and where to write, or a run alone")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if len(shardBytes) > 0 {
					return usageError{errors.New("ckpt merge: --max-shard goes with a folder to write")}
				}
				return completeRun(cmd, args[0], asJSON)
			}
			in, err := openInput(cmd, args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			to, err := locateOutput(args[1])
			if err != nil {
				return err
			}
			o := conversion{to: to, in: in, folder: huggingface.WriteOptions{}}
			if len(shardBytes) > 0 {
				o.folder.MaxShardBytes = int64(shardBytes[0])
			}
			return convert(cmd, converters["huggingface"], o, "huggingface", asJSON)
		},
	}
	cmd.Flags().Var(&sizes{values: &shardBytes}, "max-shard", "most bytes of a file of weights (default: 5 GB)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// completeRun makes a checkpoint of the newest parts of a run that are whole.
func completeRun(cmd *cobra.Command, arg string, asJSON bool) error {
	run, err := locateRun(cmd.Context(), arg)
	if err != nil {
		return err
	}
	stage, err := newestParts(cmd.Context(), run, arg)
	if err != nil {
		return err
	}
	name, err := checkpoint.Complete(cmd.Context(), run, stage)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), map[string]any{"run": arg, "parts": stage, "checkpoint": name})
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), visible.Text(fmt.Sprintf("%s: made %s of the parts in %s", arg, name, stage)))
	return err
}

// newestParts returns the newest parts of a run that are whole tensors. The error says what the
// newest ones lack.
func newestParts(ctx context.Context, run storage.Storage, arg string) (stage string, err error) {
	list, err := checkpoint.List(ctx, run)
	if err != nil {
		return "", err
	}
	for _, l := range list {
		if l.Kind != checkpoint.Parts {
			continue
		}
		if l.Err == nil {
			return l.Name, nil
		}
		if err == nil {
			err = fmt.Errorf("%s: %s cannot be completed: %w", arg, l.Name, l.Err)
			if len(l.Missing) > 0 {
				err = fmt.Errorf("%w; nothing is there of %s", err, inRanks(l.Missing))
			}
		}
	}
	if err == nil {
		err = &anyformat.UnknownError{Location: arg, Problem: "has no parts that ranks have saved alone; give a place to write to, as in cohort ckpt merge " + arg + " hub"}
	}
	return "", err
}
