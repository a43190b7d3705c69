// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/train"
	"github.com/cohort-ml/cohort/train/predict"
)

// modelFlags name a model that is used.
type modelFlags struct {
	from string
	step int
}

func (m *modelFlags) add(cmd *cobra.Command, from string) {
	cmd.Flags().StringVar(&m.from, "from", from, fromUsage)
	cmd.Flags().IntVar(&m.step, "step", 0, stepUsage)
}

// open opens the place of the model.
func (m *modelFlags) open(cmd *cobra.Command) (storage.Storage, error) {
	if m.from == "" {
		return nil, usageError{errors.New("--from is empty: name the directory of a run, a checkpoint, or the folder of a model")}
	}
	place, err := openModelPlace(m.from)
	if err != nil {
		return nil, usageError{fmt.Errorf("--from: %w", err)}
	}
	if cmd.Flags().Changed("step") {
		return train.AtStep(cmd.Context(), place, m.step)
	}
	return place, nil
}

// load loads the model with its preprocessing.
func (m *modelFlags) load(cmd *cobra.Command) (*train.Model, error) {
	place, err := m.open(cmd)
	if err != nil {
		return nil, err
	}
	return train.Load(cmd.Context(), place, noticesOf(cmd))
}

// noticesOf tells a person something beside the output of a command.
func noticesOf(cmd *cobra.Command) func(text string) {
	return func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "cohort: "+text) }
}

// inputFlags say what a model is used on.
type inputFlags struct {
	predict.Options
	onError string
}

const inputUsage = "format of standard input, and of files whose names tell none (default: text; of a recommender csv)"

func (o *inputFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Format, "input-format", "", inputUsage)
	oneOf(f, "input-format", predict.FormatText, predict.FormatJSONL, predict.FormatCSV)
	f.StringVar(&o.Field, "field", "", "`NAME` of the field of records with the text, or the path of the image (default: what the model was trained on, or a usual name)")
	f.StringSliceVar(&o.Keep, "keep", nil, "`NAMES` of fields that are copied into the output")
	f.IntVar(&o.Batch, "batch", 0, "inputs that go through the model at once (default: what suits the model)")
	f.StringVar(&o.onError, "on-error", data.Fail.String(), "what is done about an input that cannot be used: end, or leave it out and say so")
	oneOf(f, "on-error", data.Fail.String(), data.SkipSample.String())
	groupFlags(f, "Input", "input-format", "field", "keep", "batch", "on-error")
}

// fill completes the options by the arguments.
func (o *inputFlags) fill(cmd *cobra.Command, args []string) error {
	policy, err := data.ParseOnError(o.onError)
	if err != nil {
		return usageError{fmt.Errorf("--on-error: %w", err)}
	}
	if o.Batch < 0 || o.Batch > 1<<16 {
		return usageError{fmt.Errorf("--batch is %d, want 0 to %d", o.Batch, 1<<16)}
	}
	o.Paths, o.Stdin, o.Skip, o.Notice = args, cmd.InOrStdin(), policy == data.SkipSample, noticesOf(cmd)
	return nil
}

// somePaths refuses a command line that names no input.
func somePaths(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{fmt.Errorf("%s: name files or folders, or - for standard input", cmd.CommandPath())}
	}
	return nil
}

func newPredictCommand() *cobra.Command {
	var model modelFlags
	var in inputFlags
	var format, out string
	var top int
	cmd := &cobra.Command{
		Use:   "predict --from PLACE PATH...",
		Short: "Predict with a trained model",
		Long: `Predict with a model of a run, of one checkpoint, or of a folder of Hugging Face's
tools with a head for classes. The inputs go through what the model was trained
with: its tokenizer, the size of its images, the columns of its table.

An input is an image (JPEG or PNG; of a folder all below it), a row of a table
(.csv, .tsv), a record (.jsonl, .parquet and others), or a line of text. A
dash stands for standard input. Inputs need no labels.

The output has the place of each input, what the model tells, and how likely that
is, in the order of the inputs. Memory does not depend on how many there are.`,
		Example: `  cohort predict --from out/vision photos/
  cohort predict --from out/rec new.csv --format csv --out scores.csv
  echo 'a fine day' | cohort predict --from out/classify -`,
		Args: somePaths,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := in.fill(cmd, args); err != nil {
				return err
			}
			if top < 0 {
				return usageError{fmt.Errorf("--top is %d, want 0 or more", top)}
			}
			m, err := model.load(cmd)
			if err != nil {
				return err
			}
			if err := m.Predicts(); err != nil {
				return usageError{err}
			}
			src, err := predict.OpenSource(cmd.Context(), m, in.Options)
			if err != nil {
				return usageError{err}
			}
			defer src.Close()
			return writeOutput(cmd, out, func(w io.Writer, _ *os.File) error {
				writer, err := predict.NewWriter(w, cmp.Or(format, formatByName(out)), m, predict.WriterOptions{Top: top, Keep: in.Keep})
				if err != nil {
					return usageError{err}
				}
				sum, err := predict.Run(cmd.Context(), m, src, in.Options, writer)
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
	f.StringVar(&format, "format", "", "format of the output (default: by the name of --out, or table)")
	oneOf(f, "format", predict.Table, predict.CSV, predict.JSONLines)
	f.IntVar(&top, "top", 0, "write the `N` likeliest classes of each input (default: all; in a table three)")
	f.StringVar(&out, "out", "", "write to a `FILE` (default: standard output)")
	groupFlags(f, "Output", "format", "top", "out")
	return cmd
}

// formatByName tells the format of predictions by a file's name.
func formatByName(path string) string {
	switch {
	case strings.HasSuffix(path, ".csv"):
		return predict.CSV
	case strings.HasSuffix(path, ".jsonl") || strings.HasSuffix(path, ".ndjson"):
		return predict.JSONLines
	}
	return predict.Table
}

// tellSummary says what was left out or cut. An output without a single input is an error.
func tellSummary(cmd *cobra.Command, sum predict.Summary) error {
	if sum.Done == 0 {
		return fmt.Errorf("there is no input that can be used (%s)", sum)
	}
	if sum.Skipped+sum.Cut > 0 {
		noticesOf(cmd)(sum.String())
	}
	return nil
}

// writeOutput calls write with standard output, or with a new file, which has its name only
// when all is written.
func writeOutput(cmd *cobra.Command, path string, write func(w io.Writer, f *os.File) error) (err error) {
	if path == "" {
		w := bufio.NewWriter(cmd.OutOrStdout())
		return errors.Join(write(w, nil), w.Flush())
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".cohort-*")
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriter(f)
	if err := errors.Join(write(w, f), w.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
