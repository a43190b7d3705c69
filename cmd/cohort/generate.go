// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/train"
)

func newGenerateCommand() *cobra.Command {
	var from, prompt string
	var step int
	o := train.GenerateOptions{NumTokens: 200, Temperature: 0.8, TopK: 50, Seed: 1}
	cmd := &cobra.Command{
		Use:   "generate --from PLACE",
		Short: "Continue a prompt with a trained language model",
		Long: `Continue a prompt with a language model: of a run, of one checkpoint, or a GPT-2 or
Llama, or an adapter of one, in a folder that Hugging Face's save_pretrained or
PEFT wrote, with its tokenizer.json. Of a run, the command takes the best weights
if the run kept them, and says so; --step takes others.

The text ends at a token of eos_token_id in the folder's generation_config.json
(or, without that file, in config.json), or, if there is no eos_token_id, at any
special token. The file's do_sample, temperature, top_k, top_p,
repetition_penalty, max_new_tokens, max_length, min_new_tokens and min_length are
the defaults; a flag comes before them. The command prints which other settings
of the file it ignores.`,
		Example: `  cohort generate --from out/lm --prompt 'func main() {'
  cohort generate --from path/to/llama --prompt 'Once upon a time' \
      --temperature 0`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.NumTokens < 0 || !(o.Temperature >= 0) || math.IsInf(o.Temperature, 1) || o.TopK < 0 {
				return usageError{fmt.Errorf("--tokens, --temperature and --top-k must be finite and 0 or more, got %d, %v and %d", o.NumTokens, o.Temperature, o.TopK)}
			}
			if !(o.TopP > 0 && o.TopP <= 1) || !(o.RepetitionPenalty > 0) {
				return usageError{fmt.Errorf("--top-p must be more than 0 and at most 1, and --repetition-penalty more than 0, got %v and %v", o.TopP, o.RepetitionPenalty)}
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
			notice := func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "cohort: "+text) }
			model, tok, err := train.LoadLM(cmd.Context(), place, notice)
			if err != nil {
				return err
			}
			said, err := train.LoadGeneration(cmd.Context(), place, notice)
			if err != nil {
				return err
			}
			flags := map[string]string{"max_new_tokens": "tokens", "temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "repetition_penalty": "repetition-penalty"}
			o.Fill(said, func(name string) bool { return flags[name] != "" && cmd.Flags().Changed(flags[name]) })
			out := cmd.OutOrStdout()
			if _, err := fmt.Fprint(out, prompt); err != nil {
				return err
			}
			err = train.Generate(cmd.Context(), model, tok, prompt, o, func(piece []byte) error {
				_, err := out.Write(piece)
				return err
			})
			fmt.Fprintln(out)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "out/lm", fromUsage)
	f.IntVar(&step, "step", 0, stepUsage)
	f.StringVar(&prompt, "prompt", "", "`TEXT` to go on from")
	f.IntVar(&o.NumTokens, "tokens", o.NumTokens, "number of tokens to write")
	f.Float64Var(&o.Temperature, "temperature", o.Temperature, "how much chance decides: below 1 likely tokens become likelier; 0: always take the likeliest token")
	f.IntVar(&o.TopK, "top-k", o.TopK, "draw among the `N` likeliest tokens; 0: all")
	f.Float64Var(&o.TopP, "top-p", 1, "draw among the likeliest tokens whose probabilities add up to `NUMBER`; 1: all")
	f.Float64Var(&o.RepetitionPenalty, "repetition-penalty", 1, "divide the scores of tokens that the text already has by `NUMBER`; 1: no penalty")
	f.Int64Var(&o.Seed, "seed", o.Seed, "seed of the random draws")
	return cmd
}
