// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/anyformat"
)

func newCkptReshardCommand() *cobra.Command {
	var asJSON bool
	var numFiles, numRanks, step int
	var meshText string
	cmd := &cobra.Command{
		Use:   "reshard CKPT RUN",
		Short: "Write a checkpoint as ranks on another mesh would save it",
		Long: `Write a checkpoint of any format as a Cohort checkpoint in RUN, laid out for other
ranks. This is never necessary: a job of any mesh loads a checkpoint of any other. It
saves the job the reads of boxes that do not fit.

  --files N    whole tensors, in N files of about the same size
  --ranks N    N ranks of FSDP: each tensor is cut along its first dim
  --mesh TEXT  axes with their sizes, the outermost first: fsdp=4,tp=2

An axis cuts as it does in the checkpoint. If the checkpoint has no such axis,
replicate cuts nothing and fsdp the first dim. Other axes are refused then, because only
the model knows what they cut.`,
		Example: `  cohort ckpt reshard out/lm out/lm8 --ranks 8
  cohort ckpt reshard out/lm out/lm8 --mesh fsdp=4,tp=2`,
		Args: numArgs(2, "a checkpoint and the run to write to"),
		RunE: func(cmd *cobra.Command, args []string) error {
			axes, err := reshardMesh(numFiles, numRanks, meshText)
			if err != nil {
				return usageError{fmt.Errorf("ckpt reshard: %w", err)}
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
			o := conversion{to: to, in: in, cohort: anyformat.CohortOptions{Step: step}}
			if axes == nil {
				o.cohort.Layout.Ranks = numFiles
			} else if o.cohort.Layout, err = anyformat.LayoutOn(in, axes); err != nil {
				return err
			}
			return convert(cmd, converters["cohort"], o, "cohort", asJSON)
		},
	}
	cmd.Flags().IntVar(&numFiles, "files", 0, "number of files of whole tensors")
	cmd.Flags().IntVar(&numRanks, "ranks", 0, "number of ranks of FSDP")
	cmd.Flags().StringVar(&meshText, "mesh", "", "axes of a mesh with their sizes, such as fsdp=4,tp=2")
	cmd.Flags().IntVar(&step, "step", -1, "step of the checkpoint (default: that of CKPT, or else 0)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// reshardMesh returns the mesh that flags ask for, nil for whole tensors in files.
func reshardMesh(numFiles, numRanks int, text string) ([]checkpoint.Axis, error) {
	given := 0
	for _, is := range []bool{numFiles != 0, numRanks != 0, text != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("want one of --files, --ranks and --mesh")
	case numFiles < 0 || numRanks < 0:
		return nil, errors.New("want a positive number of files or ranks")
	case numFiles > 0:
		return nil, nil
	case numRanks > 0:
		return []checkpoint.Axis{{Name: "fsdp", Size: numRanks}}, nil
	}
	var axes []checkpoint.Axis
	for item := range strings.SplitSeq(text, ",") {
		name, number, ok := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 1 || name == "" {
			return nil, fmt.Errorf("--mesh %q: want axes with their sizes, such as fsdp=4,tp=2", text)
		}
		if slices.ContainsFunc(axes, func(a checkpoint.Axis) bool { return a.Name == name }) {
			return nil, fmt.Errorf("--mesh %q: the axis %s is there twice", text, name)
		}
		axes = append(axes, checkpoint.Axis{Name: name, Size: n})
	}
	return axes, nil
}
