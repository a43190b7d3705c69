// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/anyformat"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/internal/visible"
)

// conversion is what a converter is given.
type conversion struct {
	to       anyformat.Location
	in       *anyformat.Input
	sections []anyformat.Section
	folder   huggingface.WriteOptions
	cohort   anyformat.CohortOptions
	progress anyformat.Progress
}

// converter writes an input in a format.
type converter struct {
	// sections are those that the format has a place for; nil is all.
	sections []string
	write    func(ctx context.Context, c conversion) error
}

// converters are the formats of --to.
var converters = map[string]converter{
	"huggingface": {[]string{anyformat.ModelSection}, func(ctx context.Context, c conversion) error {
		return anyformat.WriteHuggingFace(ctx, c.to, c.in, c.sections[0], c.folder, c.progress)
	}},
	"torch": {[]string{anyformat.ModelSection, anyformat.OptimizerSection}, func(ctx context.Context, c conversion) error {
		return anyformat.WriteTorch(ctx, c.to, c.in, c.sections, c.progress)
	}},
	"dcp": {[]string{anyformat.ModelSection, anyformat.OptimizerSection}, func(ctx context.Context, c conversion) error {
		return anyformat.WriteDCP(ctx, c.to, c.in, c.sections, c.progress)
	}},
	"cohort": {nil, func(ctx context.Context, c conversion) error {
		_, err := anyformat.WriteCohort(ctx, c.to, c.in, c.sections, c.cohort, c.progress)
		return err
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
	if c.sections != nil {
		if _, err := in.Section(anyformat.ModelSection); err != nil {
			return nil, nil, err
		}
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
	var numFiles, step int
	cmd := &cobra.Command{
		Use:   "convert IN OUT --to FORMAT",
		Short: "Write a checkpoint in the format of another tool",
		Long: `Write the tensors of a checkpoint of any format in another format. OUT must not exist, or
be an empty folder where a folder is written; it appears whole or not at all. The bytes of tensors are not changed.

  huggingface  a folder that transformers opens: the model in one file or in
               shards with their index, its configuration and its tokenizer
  torch        a file that torch.load opens with weights_only=True: the state
               dict of the model or, if there is an optimizer, a dict with the
               keys model and optimizer
  dcp          a directory of torch.distributed.checkpoint with the keys model
               and optim, in the boxes in which the tensors lie
  cohort       a checkpoint in the run OUT, with all that IN has

Memory does not depend on the size: tensors are copied piece by piece.`,
		Example: `  cohort ckpt convert out/lm hub --to huggingface
  cohort ckpt convert hub model.pt --to torch`,
		Args: numArgs(2, "a checkpoint and where to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, known := converters[format]
			if !known {
				return usageError{fmt.Errorf("ckpt convert: --to %q: want one of %s", format, strings.Join(slices.Sorted(maps.Keys(converters)), ", "))}
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
			o := conversion{to: to, in: in, folder: huggingface.WriteOptions{NumShards: numFiles}, cohort: anyformat.CohortOptions{Step: step}}
			o.cohort.Layout.Ranks = numFiles
			if len(shardBytes) > 0 {
				o.folder.MaxShardBytes = int64(shardBytes[0])
			}
			return convert(cmd, c, o, format, asJSON)
		},
	}
	cmd.Flags().StringVar(&format, "to", "", "format to write")
	cmd.Flags().IntVar(&numFiles, "files", 0, "number of files of weights (default: as many as --max-shard asks for)")
	cmd.Flags().Var(&shards, "max-shard", "most bytes of a file of weights (default: 5 GB)")
	cmd.Flags().IntVar(&step, "step", -1, "step of a Cohort checkpoint (default: that of IN, or else 0)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	oneOf(cmd.Flags(), "to", "FORMAT")
	return cmd
}

// convert runs a converter and says what it has written.
func convert(cmd *cobra.Command, c converter, o conversion, format string, asJSON bool) error {
	sections, left, err := c.take(o.in)
	if err != nil {
		return err
	}
	bar := newProgressBar(cmd.ErrOrStderr())
	defer bar.end()
	o.sections, o.progress = sections, bar.show
	if err := c.write(cmd.Context(), o); err != nil {
		return err
	}
	bar.end()
	numTensors := 0
	for _, s := range sections {
		numTensors += len(s.Source.Infos())
	}
	values := []string{} // that are lost
	if format != "cohort" || o.in.Checkpoint == nil {
		values = append(values, o.in.Values...)
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), map[string]any{"in": o.in.Where, "out": o.to.Text, "format": format, "tensors": numTensors, "left_out": left, "left_out_values": values})
	}
	text := fmt.Sprintf("%s: %s", o.to.Text, plural(numTensors, "tensor"))
	if len(left) > 0 {
		text += "; the format has no place for: " + strings.Join(left, ", ")
	}
	if len(values) > 0 {
		const most = 8
		named, more := values, ""
		if len(values) > most {
			named, more = values[:most], fmt.Sprintf(" and %d more", len(values)-most)
		}
		text += "; values that are left out: " + strings.Join(named, ", ") + more
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), visible.Text(text))
	return err
}
