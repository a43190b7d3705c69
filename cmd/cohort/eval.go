// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train"
)

// Help of the flags that name a model.
const (
	fromUsage = "`PLACE` of the model, a directory or an address (s3://, https://): a run, one checkpoint of a run, or a folder of Hugging Face's tools"
	stepUsage = "take the run's checkpoint of step `N` (default: the best weights or, if the run kept none, the last checkpoint)"
)

func newEvalCommand() *cobra.Command {
	var from string
	var step int
	var asJSON bool
	var picture string
	var o train.EvalOptions
	cmd := &cobra.Command{
		Use:   "eval --from PLACE",
		Short: "Evaluate a trained model on data",
		Long: `Evaluate a model: of a run of any recipe, of one checkpoint, or a GPT-2 or Llama,
or an adapter of one, in a folder that Hugging Face's save_pretrained or PEFT
wrote. The checkpoint says what kind of model it is. Of a run, the command takes
the best weights if the run kept them, and says so; --step takes others.

By default the data are the part of its own data that training held out. --data
names other data of the same kind, of which the same part is taken. --all takes
all of the data.`,
		Example: `  cohort eval --from out/lm
  cohort eval --from path/to/llama --data notes.txt --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Batch < 0 || o.Tokens < 0 || o.Context < 0 {
				return usageError{fmt.Errorf("--batch, --tokens and --context must be 0 or more, got %d, %d and %d", o.Batch, o.Tokens, o.Context)}
			}
			if picture != "" {
				if err := wantEnding("confusion", picture, ".svg"); err != nil {
					return err
				}
			}
			place, err := openModelPlace(from)
			if err != nil {
				return usageError{fmt.Errorf("--from: %w", err)}
			}
			if cmd.Flags().Changed("step") {
				if place, err = train.AtStep(cmd.Context(), place, step); err != nil {
					return err
				}
			}
			r, err := train.Eval(cmd.Context(), place, o, func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "cohort: "+text) })
			if err != nil {
				return err
			}
			if picture != "" {
				if r.Confusion == nil {
					return usageError{fmt.Errorf("--confusion is for classifiers with up to 256 classes: %s is of the task %q", r.Path, r.Task)}
				}
				if err := writeOutput(cmd, picture, func(w io.Writer, _ *os.File) error { return r.Confusion.WriteSVG(w) }); err != nil {
					return err
				}
			}
			return printEvaluation(cmd.OutOrStdout(), r, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "out/lm", fromUsage)
	f.IntVar(&step, "step", 0, stepUsage)
	f.StringVar(&o.Data, "data", "", "`PATH` of the data (default: the data that the model was trained on)")
	f.BoolVar(&o.All, "all", false, "evaluate on all of the data, not only on the part that training holds out")
	f.IntVar(&o.Batch, "batch", 0, "samples that go through the model at once (default: what suits the recipe)")
	f.IntVar(&o.Tokens, "tokens", 0, "of a text, evaluate on at most `N` tokens (default: all)")
	f.IntVar(&o.Context, "context", 0, "tokens that a language model sees at once (default: as in training)")
	f.StringVar(&picture, "confusion", "", "write the confusion matrix of a classifier as a picture to `FILE`, which ends with .svg")
	f.BoolVar(&asJSON, "json", false, "print the result as one JSON object")
	return cmd
}

// printEvaluation prints a result, for people or for programs.
func printEvaluation(w io.Writer, r train.EvalResult, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintf(w, "%s: %s\n%s: %d %s\n%s\n", r.Path, r.Model, r.Data, r.Samples, r.Unit, r.Metrics)
		if c := r.Confusion; err == nil && c != nil && len(c.Classes) <= 16 {
			_, err = fmt.Fprintf(w, "\n%v\n", c)
		}
		return err
	}
	line := map[string]any{"eval": r.Task, "path": r.Path, "step": r.Step, "model": r.Model, "data": r.Data, "samples": r.Samples, "unit": r.Unit}
	for _, m := range r.Metrics {
		if line[m.Name] = nil; !math.IsNaN(m.Value) && !math.IsInf(m.Value, 0) { // JSON has no such numbers
			line[m.Name] = m.Value
		}
	}
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("eval: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}
