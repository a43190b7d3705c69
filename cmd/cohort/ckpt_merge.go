// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/huggingface"
)

func newCkptMergeCommand() *cobra.Command {
	var asJSON bool
	var shardBytes []int
	cmd := &cobra.Command{
		Use:   "merge CKPT OUT",
		Short: "Put the boxes of all ranks together in a folder of whole tensors",
		Long: `Write the model of a checkpoint as a folder of whole tensors, with its configuration and
its tokenizer: what transformers opens. It does the same as cohort ckpt convert --to
huggingface, whatever ranks have saved the checkpoint. OUT must not exist, or be an
empty folder; it appears whole or not at all.`,
		Example: "  cohort ckpt merge out/lm hub",
		Args:    numArgs(2, "a checkpoint and where to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
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
