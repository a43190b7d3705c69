// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/train"
	"github.com/cohort-ml/cohort/train/predict"
)

// maxPrompt bounds a prompt from standard input.
const maxPrompt = 16 << 20

// generating is what cohort generate is asked for.
type generating struct {
	o               train.GenerateOptions
	model           modelFlags
	prompt, prompts string
	samples, batch  int
	chat, plain     bool
	system, out     string
}

func newGenerateCommand() *cobra.Command {
	g := generating{o: train.GenerateOptions{NumTokens: 200, Temperature: 0.8, TopK: 50, Seed: 1}}
	cmd := &cobra.Command{
		Use:   "generate --from PLACE",
		Short: "Continue a prompt with a trained language model, or talk to it",
		Long: `Continue a prompt with a language model: of a run, of one checkpoint, or a GPT-2,
Llama or other decoder, or an adapter of one, in a folder that Hugging Face's
save_pretrained or PEFT wrote, with its tokenizer.json. Of a run, the command takes
the best weights if the run kept them, and says so; --step takes others.

The text ends at a token of eos_token_id in the folder's generation_config.json
(or, without that file, in config.json), or, if there is no eos_token_id, at any
special token, and before a text of --stop. The settings of the file are the
defaults; a flag comes before them. A setting of the file that the command cannot
honour is an error, unless --no-generation-config leaves the file aside.

With --prompts the command continues all prompts of a file, and writes one JSON
object for each text. With --chat it talks: it reads a message from each line of
standard input, and writes the answers.`,
		Example: `  cohort generate --from out/lm --prompt 'func main() {'
  cohort generate --from path/to/llama --prompt - --temperature 0 <prompt.txt
  cohort generate --from path/to/qwen --chat --system 'Answer in one line.'
  cohort generate --from out/lm --prompts prompts.jsonl --out texts.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return g.run(cmd) },
	}
	f := cmd.Flags()
	g.model.add(cmd, "out/lm")
	groupFlags(f, "Model", "from", "step")
	f.StringVar(&g.prompt, "prompt", "", "`TEXT` to go on from; - takes all of standard input")
	f.StringVar(&g.prompts, "prompts", "", "`FILE` of prompts to go on from: JSON lines with a prompt or messages (.jsonl), or lines of text; - is standard input")
	f.IntVar(&g.samples, "samples", 1, "number of texts to write for each prompt")
	f.IntVar(&g.batch, "batch", 8, "texts that go through the model at once, if they begin with as many tokens")
	f.StringVar(&g.out, "out", "", "write the texts of --prompts to a `FILE` (default: standard output)")
	f.BoolVar(&g.chat, "chat", false, "talk to the model; each line is a message")
	f.StringVar(&g.system, "system", "", "`TEXT` that tells the model of --chat how to answer")
	groupFlags(f, "Input", "prompt", "prompts", "samples", "batch", "out", "chat", "system")
	f.IntVar(&g.o.NumTokens, "tokens", g.o.NumTokens, "number of tokens to write")
	f.Float64Var(&g.o.Temperature, "temperature", g.o.Temperature, "how much chance decides: below 1 likely tokens become likelier; 0: always take the likeliest token")
	f.IntVar(&g.o.TopK, "top-k", g.o.TopK, "draw among the `N` likeliest tokens; 0: all")
	f.Float64Var(&g.o.TopP, "top-p", 1, "draw among the likeliest tokens whose probabilities add up to `NUMBER`; 1: all")
	f.Float64Var(&g.o.MinP, "min-p", 0, "draw among tokens that are at least `NUMBER` times as likely as the likeliest; 0: all")
	f.Float64Var(&g.o.RepetitionPenalty, "repetition-penalty", 1, "divide the scores of tokens that the text already has by `NUMBER`; 1: no penalty")
	f.Float64Var(&g.o.PresencePenalty, "presence-penalty", 0, "take `NUMBER` from the scores of tokens that were written before")
	f.Float64Var(&g.o.FrequencyPenalty, "frequency-penalty", 0, "take `NUMBER` from the scores of tokens for each time that they were written before")
	f.StringArrayVar(&g.o.Stop, "stop", nil, "`TEXT` before which a text ends; may be given several times")
	f.Int64Var(&g.o.Seed, "seed", g.o.Seed, "seed of the random draws")
	f.BoolVar(&g.plain, "no-generation-config", false, "take nothing from generation_config.json but the tokens that begin and end a text")
	groupFlags(f, "Drawing", "tokens", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "presence-penalty", "frequency-penalty", "stop", "seed", "no-generation-config")
	return cmd
}

// check reports flags that make no sense.
func (g *generating) check() error {
	o := g.o
	if o.NumTokens < 0 || !(o.Temperature >= 0) || math.IsInf(o.Temperature, 1) || o.TopK < 0 {
		return fmt.Errorf("--tokens, --temperature and --top-k must be finite and 0 or more, got %d, %v and %d", o.NumTokens, o.Temperature, o.TopK)
	}
	if !(o.TopP > 0 && o.TopP <= 1) || !(o.RepetitionPenalty > 0) || !(o.MinP >= 0 && o.MinP <= 1) {
		return fmt.Errorf("--top-p must be more than 0 and at most 1, --min-p 0 to 1, and --repetition-penalty more than 0, got %v, %v and %v", o.TopP, o.MinP, o.RepetitionPenalty)
	}
	if g.samples < 1 || g.samples > 1<<16 || g.batch < 1 || g.batch > 1<<12 {
		return fmt.Errorf("--samples and --batch must be 1 or more, got %d and %d", g.samples, g.batch)
	}
	switch {
	case g.chat && (g.prompt != "" || g.prompts != "" || g.samples > 1):
		return errors.New("--chat reads messages from standard input: leave out --prompt, --prompts and --samples")
	case g.prompt != "" && g.prompts != "":
		return errors.New("--prompt and --prompts are both given: leave one of them out")
	case g.system != "" && !g.chat:
		return errors.New("--system is for --chat")
	case g.out != "" && g.prompts == "":
		return errors.New("--out is for --prompts")
	}
	return nil
}

func (g *generating) run(cmd *cobra.Command) error {
	if err := g.check(); err != nil {
		return usageError{err}
	}
	m, err := g.model.load(cmd)
	if err != nil {
		return err
	}
	if m.LM == nil {
		return usageError{fmt.Errorf("%s is a model of the task %q, which writes no text: use cohort predict or cohort embed", m.Path, m.Task)}
	}
	said := m.LM.Generation
	if g.plain {
		said = train.Generation{EOS: said.EOS, BOS: said.BOS}
	} else if err := said.Refused(); err != nil {
		return fmt.Errorf("%s: %w; --no-generation-config leaves the file aside", m.Path, err)
	}
	flags := map[string]string{"max_new_tokens": "tokens", "temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "repetition_penalty": "repetition-penalty", "stop_strings": "stop"}
	g.o.Fill(said, func(name string) bool { return flags[name] != "" && cmd.Flags().Changed(flags[name]) })
	switch {
	case g.chat:
		return talk(cmd, m.LM, g.o, g.system)
	case g.prompts != "":
		return writeOutput(cmd, g.out, func(w io.Writer, _ *os.File) error {
			return predict.Continue(cmd.Context(), m.LM, predict.ContinueOptions{
				Path: g.prompts, Stdin: cmd.InOrStdin(), Samples: g.samples, Batch: g.batch, Draw: g.o, Notice: noticesOf(cmd),
			}, w)
		})
	}
	return g.one(cmd, m.LM)
}

// one continues a single prompt.
func (g *generating) one(cmd *cobra.Command, m *train.LanguageModel) error {
	if g.prompt == "-" {
		text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPrompt+1))
		if err == nil && len(text) > maxPrompt {
			err = fmt.Errorf("the prompt has more than the %d bytes allowed", maxPrompt)
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		g.prompt = string(text)
	}
	ids, err := m.Prompt(g.prompt)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	out := cmd.OutOrStdout()
	for i := range g.samples {
		if g.samples > 1 {
			fmt.Fprintf(out, "--- %d of %d\n", i+1, g.samples)
		}
		if _, err := fmt.Fprint(out, g.prompt); err != nil {
			return err
		}
		o := g.o
		o.Seed += int64(i)
		_, err := m.Generate(cmd.Context(), [][]int64{ids}, o, func(_ int, piece []byte) error {
			_, err := out.Write(visible.Append(nil, piece))
			return err
		})
		fmt.Fprintln(out)
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
	}
	return nil
}
