// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// converter writes an input in a format.
type converter struct {
	// sections are those that the format has a place for; nil is all.
	sections []string
	write    func(ctx context.Context, to anyformat.Location, in *anyformat.Input, sections []anyformat.Section, o huggingface.WriteOptions, progress anyformat.Progress) error
}

// converters are the formats of --to.
var converters = map[string]converter{
	"huggingface": {[]string{anyformat.ModelSection}, func(ctx context.Context, to anyformat.Location, in *anyformat.Input, sections []anyformat.Section, o huggingface.WriteOptions, progress anyformat.Progress) error {
		return anyformat.WriteHuggingFace(ctx, to, in, sections[0], o, progress)
	}},
	"torch": {[]string{anyformat.ModelSection}, func(ctx context.Context, to anyformat.Location, _ *anyformat.Input, sections []anyformat.Section, _ huggingface.WriteOptions, progress anyformat.Progress) error {
		return anyformat.WriteTorch(ctx, to, sections, progress)
	}},
}

// take returns the sections of an input that the format has a place for, and the names of the
// others.
func (c converter) take(in *anyformat.Input) (taken []anyformat.Section, left []string, err error) {
	left = []string{}
	for _, s := range in.Sections {
		if c.sections == nil || slices.Contains(c.sections, s.Name) {
			taken = append(taken, s)
		} else {
			left = append(left, s.Name)
		}
	}
	if len(taken) == 0 {
		_, err := in.Section(c.sections[0])
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(in.Refused)) {
		return nil, nil, fmt.Errorf("%w; without this tensor the checkpoint would not be whole", in.Refused[name])
	}
	return taken, left, nil
}

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
be an empty folder where a folder is written; it appears whole or not at all. The bytes of tensors are not changed.

  huggingface  a folder that transformers opens: the model in one file or in
               shards with their index, its configuration and its tokenizer
  torch        a file with the state dict of the model, which torch.load opens
               with weights_only=True

Memory does not depend on the size: tensors are copied piece by piece.`,
		Example: `  cohort ckpt convert out/lm hub --to huggingface
  cohort ckpt convert hub model.pt --to torch`,
		Args: numArgs(2, "a checkpoint and where to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, known := converters[format]
			if !known {
				return usageError{fmt.Errorf("ckpt convert: --to %q: want one of %s", format, strings.Join(slices.Sorted(maps.Keys(converters)), ", "))}
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
			sections, left, err := c.take(in)
			if err != nil {
				return err
			}
			bar := newProgressBar(cmd.ErrOrStderr())
			defer bar.end()
			if err := c.write(cmd.Context(), to, in, sections, o, bar.show); err != nil {
				return err
			}
			bar.end()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"in": in.Where, "out": args[1], "format": format, "left_out": left})
			}
			numTensors := 0
			for _, s := range sections {
				numTensors += len(s.Source.Infos())
			}
			text := fmt.Sprintf("%s: %s", args[1], plural(numTensors, "tensor"))
			if len(left) > 0 {
				text += "; the format has no place for: " + strings.Join(left, ", ")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), visible.Text(text))
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
