// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train"
)

func newEvalCommand() *cobra.Command {
	var from string
	var step int
	var asJSON bool
	var o train.EvalOptions
	cmd := &cobra.Command{
		Use:   "eval --from DIR",
		Short: "Say how good a trained model is",
		Long: `Say how good a model is: that of a run of any recipe, of one checkpoint, or a GPT-2
or Llama, or an adapter of one, in a folder that Hugging Face's save_pretrained or
PEFT wrote. The checkpoint says what kind of model it is. Of a run it takes the best
weights, where it kept some, and says so; --step takes others.

By default it is evaluated on what training held out of its own data; --data names
other data of the same kind, and --all takes them whole.`,
		Example: `  cohort eval --from out/lm
  cohort eval --from path/to/llama --data notes.txt --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Batch < 0 || o.Tokens < 0 || o.Context < 0 {
				return usageError{fmt.Errorf("--batch, --tokens and --context must be 0 or more, got %d, %d and %d", o.Batch, o.Tokens, o.Context)}
			}
			if cmd.Flags().Changed("step") {
				if from, err = train.AtStep(from, step); err != nil {
					return err
				}
			}
			r, err := train.Eval(cmd.Context(), from, o, func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "cohort: "+text) })
			if err != nil {
				return err
			}
			return printEvaluation(cmd.OutOrStdout(), r, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "out/lm", "`directory` of a run, of one checkpoint, or of a model as Hugging Face's tools lay it out")
	f.IntVar(&step, "step", 0, "take the run's checkpoint of this `step`; default is the best or, where none is kept, the last")
	f.StringVar(&o.Data, "data", "", "`path` of the data; default is what the model was trained on")
	f.BoolVar(&o.All, "all", false, "take all of the data, not the part alone that training holds out")
	f.IntVar(&o.Batch, "batch", 0, "`samples` at once; 0 leaves it to the recipe")
	f.IntVar(&o.Tokens, "tokens", 0, "most `tokens` of a text; 0 is all")
	f.IntVar(&o.Context, "context", 0, "`tokens` that a language model sees at once; 0 is as in training")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// printEvaluation prints a result, for people or for programs.
func printEvaluation(w io.Writer, r train.EvalResult, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintf(w, "%s: %s\n%s: %d %s\n%s\n", r.Path, r.Model, r.Data, r.Samples, r.Unit, r.Metrics)
		return err
	}
	line := map[string]any{"eval": r.Task, "path": r.Path, "step": r.Step, "model": r.Model, "data": r.Data, "samples": r.Samples, "unit": r.Unit}
	for _, m := range r.Metrics {
		if line[m.Name] = nil; !math.IsNaN(m.Value) && !math.IsInf(m.Value, 0) { // which JSON has no words for
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
