// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newTokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenize COMMAND",
		Short: "Train tokenizers, and turn text into tokens and back",
		Long: `Train tokenizers, and turn text into tokens and back.

A tokenizer is a file in the format of Hugging Face's tokenizer.json, or the
folder of a model with such a file or with GPT-2's vocab.json and merges.txt. The
tokens are the same as those of the Hugging Face libraries.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenizeTrainCommand(), newTokenizeEncodeCommand(), newTokenizeDecodeCommand())
	return cmd
}

const (
	endOfText   = "<|endoftext|>"
	noToken     = "none"
	sampleBlock = 64 << 10 // bytes that a sample takes in one place
	maxDecode   = 1 << 20  // ids that are decoded at a time
)
