// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train/predict"
)

func newEmbedCommand() *cobra.Command {
	var model modelFlags
	var in inputFlags
	var format, out, prompt string
	cmd := &cobra.Command{
		Use:   "embed --from PLACE PATH...",
		Short: "Compute vectors of texts",
		Long: `Compute a vector for each text with an encoder: of a run of cohort train embed, of
one checkpoint, or of a folder of sentence-transformers, whose vectors these are.
The folder of an encoder alone gives the means of the features of its tokens.

An input is a record (.jsonl, .parquet and others), a row of a table (.csv, .tsv),
or a line of text. A dash stands for standard input.

The output is one JSON object in a line, or a matrix of 32-bit numbers, one row for
each text, in the order of the inputs: npy for NumPy, or safetensors, in which the
matrix is called vectors.`,
		Example: `  cohort embed --from out/embed notes.txt
  cohort embed --from path/to/minilm docs.jsonl --out docs.npy
  echo 'a fine day' | cohort embed --from out/embed -`,
		Args: somePaths,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := in.fill(cmd, args); err != nil {
				return err
			}
			format := cmp.Or(format, predict.VectorFormat(out))
			if format != predict.JSONLines && out == "" {
				return usageError{fmt.Errorf("--format %s is written to a file: name one with --out", format)}
			}
			m, err := model.load(cmd)
			if err != nil {
				return err
			}
			if m.Vectors == nil {
				return usageError{fmt.Errorf("%s is a model of the task %q, which makes no vectors of texts: want a run of cohort train embed, or the folder of an encoder", m.Path, m.Task)}
			}
			if cmd.Flags().Changed("prompt") {
				in.Prompt = &prompt
			}
			src, err := predict.OpenSource(cmd.Context(), m, in.Options)
			if err != nil {
				return usageError{err}
			}
			defer src.Close()
			return writeOutput(cmd, out, func(w io.Writer, f *os.File) error {
				writer := predict.NewVectorLines(w, in.Keep)
				if format != predict.JSONLines {
					if writer, err = predict.NewVectorFile(f, format, m.Vectors.Width()); err != nil {
						return usageError{err}
					}
				}
				sum, err := predict.Embed(cmd.Context(), m, src, in.Options, writer)
				if err := errors.Join(err, writer.Close()); err != nil {
					return err
				}
				return tellSummary(cmd, sum)
			})
		},
	}
	model.add(cmd, "")
	in.add(cmd)
	f := cmd.Flags()
	f.StringVar(&prompt, "prompt", "", "`NAME` of the folder's prompt that is put before each text, such as query; empty for none (default: the folder's)")
	f.StringVar(&format, "format", "", "format of the output (default: by the name of --out, or jsonl)")
	oneOf(f, "format", predict.JSONLines, predict.NPY, predict.SafeTensors)
	f.StringVar(&out, "out", "", "write to a `FILE` (default: standard output)")
	groupFlags(f, "Output", "prompt", "format", "out")
	return cmd
}
