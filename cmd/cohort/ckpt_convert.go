// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/visible"
)

// outputFormats are the values of --to.
var outputFormats = []string{"huggingface"}

func newCkptConvertCommand() *cobra.Command {
	var asJSON bool
	var format string
	var shards sizes
	var shardBytes []int
	shards.values = &shardBytes
	var numFiles int
	cmd := &cobra.Command{
		Use:   "convert IN OUT --to FORMAT",
		Short: "Write a checkpoint in the format of another tool",
		Long: `Write the tensors of a checkpoint of any format in another format. OUT must not exist, or
be an empty folder; it appears whole or not at all. The bytes of tensors are not changed.

  huggingface  a folder that transformers opens: the model in one file or in
               shards with their index, its configuration and its tokenizer

Memory does not depend on the size: tensors are copied piece by piece.`,
		Example: `  cohort ckpt convert out/lm hub --to huggingface`,
		Args:    numArgs(2, "a checkpoint and where to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format == "" || !slices.Contains(outputFormats, format) {
				return usageError{fmt.Errorf("ckpt convert: --to %q: want one of %s", format, strings.Join(outputFormats, ", "))}
			}
			o := huggingface.WriteOptions{NumShards: numFiles}
			if len(shardBytes) > 0 {
				o.MaxShardBytes = int64(shardBytes[0])
			}
			in, err := openInput(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer in.Close()
			to, err := locateOutput(args[1])
			if err != nil {
				return err
			}
			section, err := in.Section(anyformat.ModelSection)
			if err != nil {
				return err
			}
			bar := newProgressBar(cmd.ErrOrStderr())
			defer bar.end()
			if err := anyformat.WriteHuggingFace(cmd.Context(), to, in, section, o, bar.show); err != nil {
				return err
			}
			bar.end()
			var left []string
			for _, s := range in.Sections {
				if s.Name != section.Name {
					left = append(left, s.Name)
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"in": in.Where, "out": args[1], "format": format, "left_out": left})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s", visible.Text(args[1]), plural(len(section.Source.Infos()), "tensor"))
			if len(left) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "; the format has no place for: %s", visible.Text(strings.Join(left, ", ")))
			}
			fmt.Fprintln(cmd.OutOrStdout())
			return err
		},
	}
	cmd.Flags().StringVar(&format, "to", "", "format to write")
	cmd.Flags().IntVar(&numFiles, "files", 0, "number of files of weights (default: as many as --max-shard asks for)")
	cmd.Flags().Var(&shards, "max-shard", "most bytes of a file of weights (default: 5 GB)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	oneOf(cmd.Flags(), "to", "FORMAT")
	return cmd
}

// locateOutput returns the location of something that is to be written.
func locateOutput(arg string) (anyformat.Location, error) {
	at := anyformat.Location{Text: arg}
	if arg == "" {
		return at, usageError{errors.New("the output has the empty name")}
	}
	path, err := filepath.Abs(arg)
	if err != nil {
		return at, err
	}
	at.Parent, at.Name = storage.Dir(filepath.Dir(path)), filepath.Base(path)
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return at, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return at, err
	}
	at.Inside = storage.Dir(path)
	return at, nil
}
