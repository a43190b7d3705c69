// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/train"
)

func newTrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "train RECIPE",
		Short: "Train a model by a ready recipe",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("recipe", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrainLMCommand())
	return cmd
}

func newTrainLMCommand() *cobra.Command {
	cfg := train.DefaultLM()
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "lm",
		Short: "Train a small GPT on text, by default on the Go standard library's source",
		Long: `Train a small GPT on text with distributed data parallelism: every rank is a
process of this machine, and they average their gradients while they compute.

The text is the source of the Go standard library that is on this machine, or
any UTF-8 text (--data FILE or DIR). The run's directory (--out) gets a
checkpoint every --save-every steps and at the end; run again, it resumes there.
A checkpoint is a Hugging Face GPT-2: model.safetensors, config.json,
tokenizer.json, and besides the optimizer's state and the progress.`,
		Example: `  cohort train lm --ranks 2
  cohort train lm --data notes.txt --out out/notes --steps 500
  cohort generate --from out/lm --prompt 'func main() {'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			explicit := make(map[string]bool)
			cmd.Flags().Visit(func(f *pflag.Flag) { explicit[f.Name] = true })
			if !launch.IsRank() {
				launch.KeepSecrets()
				if err := train.CheckLM(cmd.Context(), cfg, explicit); err != nil {
					return usageError{err}
				}
				if !asJSON {
					fmt.Fprintf(cmd.ErrOrStderr(), "starting %d %s on this machine; Ctrl-C saves and stops\n", cfg.Ranks, ranks(cfg.Ranks))
				}
			}
			rank := dist.Main(func(ctx context.Context, group *dist.Group) error {
				return train.LM(ctx, group, cfg, explicit, newReporter(asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr()))
			})
			return launch.SpawnOptions{PassRank0: true}.Spawn(cmd.Context(), cfg.Ranks, func(ctx context.Context) error {
				// Rank 0 writes where the command does. A reader that has gone (| head)
				// must not end the training.
				signal.Ignore(syscall.SIGPIPE)
				err := rank(ctx)
				if errors.Is(err, train.ErrStopped) {
					os.Exit(exitFailed) // the reporter has said it, the job is not complete
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Ranks, "ranks", cfg.Ranks, "`number` of ranks, a process each")
	f.StringVar(&cfg.Data, "data", cfg.Data, "`file` or directory of UTF-8 text; default is the Go standard library's source")
	f.StringVar(&cfg.Out, "out", cfg.Out, "`directory` of the run")
	f.IntVar(&cfg.Steps, "steps", cfg.Steps, "training steps")
	f.IntVar(&cfg.Batch, "batch", cfg.Batch, "sequences a rank and pass")
	f.IntVar(&cfg.Accumulate, "accumulate", cfg.Accumulate, "`passes` of a step, whose gradients add up: the sequences of a step are ranks × batch × accumulate")
	f.Int64Var(&cfg.Seed, "seed", cfg.Seed, "decides the first weights and the order of the data")
	f.StringVar(&cfg.DType, "dtype", cfg.DType, "`type` that is computed in: float32 or bfloat16 (weights and checkpoints are float32 always)")
	f.BoolVar(&cfg.Recompute, "recompute", cfg.Recompute, "keep only what goes in and out of each layer for the backward pass, and compute the rest again: less memory, more time")
	f.StringVar(&cfg.NaN, "nan", cfg.NaN, "what to do about a step whose loss or gradients are not finite: `stop`, or skip its update (at most 10 in a row)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a step on standard output")
	f.IntVar(&cfg.Vocab, "vocab", cfg.Vocab, "entries of the tokenizer's vocabulary")
	f.IntVar(&cfg.Context, "context", cfg.Context, "tokens in a sequence")
	f.IntVar(&cfg.Width, "width", cfg.Width, "width of the model")
	f.IntVar(&cfg.Heads, "heads", cfg.Heads, "attention heads; they divide the width")
	f.IntVar(&cfg.Layers, "layers", cfg.Layers, "layers of the model")
	f.Float64Var(&cfg.LR, "lr", cfg.LR, "highest learning `rate`")
	f.Float64Var(&cfg.WeightDecay, "weight-decay", cfg.WeightDecay, "weight decay of the matrices")
	f.Float64Var(&cfg.Beta2, "beta2", cfg.Beta2, "AdamW's second decay `rate`")
	f.Float64Var(&cfg.Clip, "clip", cfg.Clip, "largest `norm` of all gradients together")
	f.Float64Var(&cfg.Warmup, "warmup", cfg.Warmup, "`share` of the steps in which the learning rate rises")
	f.Float64Var(&cfg.LRFloor, "lr-floor", cfg.LRFloor, "`share` of the learning rate that is left at the end")
	f.IntVar(&cfg.EvalEvery, "eval-every", cfg.EvalEvery, "`steps` between evaluations")
	f.IntVar(&cfg.EvalTokens, "eval-tokens", cfg.EvalTokens, "validation `tokens` of an evaluation")
	f.IntVar(&cfg.SaveEvery, "save-every", cfg.SaveEvery, "`steps` between checkpoints")
	f.IntVar(&cfg.Keep, "keep", cfg.Keep, "`number` of checkpoints that stay")
	f.IntVar(&cfg.SampleTokens, "sample-tokens", cfg.SampleTokens, "`tokens` of text to print at the end")
	f.StringVar(&cfg.Prompt, "prompt", cfg.Prompt, "`text` that the sample goes on from")
	return cmd
}

func ranks(n int) string {
	if n == 1 {
		return "rank"
	}
	return "ranks"
}

func newReporter(asJSON bool, stdout, stderr io.Writer) train.Reporter {
	if asJSON {
		return train.NewJSONLines(stdout, stderr)
	}
	f, ok := stdout.(*os.File)
	return train.NewConsole(stdout, ok && term.IsTerminal(int(f.Fd())), command())
}

// command returns how the user calls this program: `go run` leaves nothing to
// call.
func command() string {
	if exe, err := os.Executable(); err == nil && strings.Contains(exe, "go-build") {
		return "go run ./cmd/cohort"
	}
	return "cohort"
}
