// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

func newTrainClassifyCommand() *cobra.Command {
	cfg := train.DefaultClassify()
	return recipe{
		task: "classify", settings: &cfg, shared: &cfg.SharedConfig,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckClassify(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.Classify(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "classify",
		Short: "Train a classifier of texts, or of their words",
		Long: `Train a classifier of texts, or of their words, with data parallelism.

The encoder to begin with (--init-from) is a folder of Hugging Face's tools or of
sentence-transformers. It gets a new head for the classes of the records (--data),
unless it has one for the same classes. A record is a line of JSON or a row of a
table, with a text and its class, the list of its classes, or a number; or with a
list of words and a list of their tags (--kind says which).

The run holds out a share of the records (--validation) and evaluates on it. The
directory of the run (--out) gets a checkpoint every --save-every steps and at the
end, and the best weights in best. Checkpoints of one rank are folders that
transformers opens, with the names of the classes. The same command resumes the
run.`,
		Example: `  cohort train classify --init-from roberta-base --data reviews.csv
  cohort train classify --init-from xlm-r --data topics.jsonl --label topics
  cohort train classify --init-from out/a --data words.jsonl --kind tags`,
	})
}
