// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

func newTrainLMCommand() *cobra.Command {
	cfg := train.DefaultLM()
	return recipe{
		settings: &cfg,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckLM(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.LM(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "lm",
		Short: "Train a small GPT on text, by default on the Go standard library's source",
		Long: `Train a small GPT on text with distributed data parallelism: every rank is a
process of this machine, and they average their gradients while they compute.

The text is the source of the Go standard library that is on this machine, or
any UTF-8 text (--data FILE or DIR). The run's directory (--out) gets a
checkpoint every --save-every steps and at the end; run again, it resumes there.
A checkpoint is a Hugging Face GPT-2: model.safetensors, config.json,
tokenizer.json, and besides the optimizer's state and the progress.

With --init-from it goes on from a GPT-2 or Llama that there is, with its own
tokenizer and sizes; --lora trains low-rank matrices beside the model's weights
and saves them as PEFT does.`,
		Example: `  cohort train lm --ranks 2
  cohort train lm --data notes.txt --out out/notes --steps 500
  cohort train lm --config out/notes/config.toml --out out/again
  cohort train lm --init-from path/to/llama --data notes.txt --lora 8
  cohort generate --from out/lm --prompt 'func main() {'`,
	})
}
