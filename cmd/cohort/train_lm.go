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
		task: "lm", settings: &cfg, shared: &cfg.SharedConfig,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckLM(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.LM(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "lm",
		Short: "Train a language model on text, by default the Go standard library's source",
		Long: `Train a small GPT on text with data parallelism: every rank is a process on this
machine, and the ranks average their gradients during the backward pass.

The text is the source of the Go standard library on this machine, or any UTF-8
text (--data). A sample is a sequence of --context tokens.

The directory of the run (--out) gets a checkpoint every --save-every steps and at
the end. The same command resumes the run from there. A checkpoint is a Hugging
Face GPT-2 (model.safetensors, config.json, tokenizer.json), with the optimizer's
state and the progress of the run beside it.

With --experts the model is a mixture of experts: a Llama with several feed-forward
networks in each layer, of which a token uses a few.

The ranks may share out more than samples: --fsdp shards the state of the model,
--tp splits matrices, --pp layers, --ep experts and --cp sequences, all at once if
need be. A run continues with other axes on the same checkpoint.

With --init-from the run begins with an existing GPT-2 or Llama, its tokenizer
and its sizes. With --lora it trains low-rank matrices beside the model's weights
and saves them as PEFT does.`,
		Example: `  cohort train lm --ranks 2
  cohort train lm --data notes.txt --out out/notes --steps 500
  cohort train lm --tp 2 --pp 2 --layers 4 --heads 4 --batch 16
  cohort train lm --config out/notes/config.toml --out out/again
  cohort train lm --init-from path/to/llama --data notes.txt --lora 8
  cohort generate --from out/lm --prompt 'func main() {'`,
	})
}
