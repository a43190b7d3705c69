// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

func newTrainEmbedCommand() *cobra.Command {
	cfg := train.DefaultEmbed()
	return recipe{
		task: "embed", settings: &cfg, shared: &cfg.SharedConfig,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckEmbed(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.Embed(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "embed",
		Short: "Train an encoder that turns texts into vectors",
		Long: `Train an encoder that turns texts into vectors with data parallelism.

The encoder to begin with (--init-from) is a folder of Hugging Face's tools or of
sentence-transformers. The records (--data) have two texts that belong together,
two texts and one that does not belong, or two texts and a score. A record is a
line of JSON or a row of a table. With --loss ranking a text looks for its partner
among the texts of the step, of all ranks.

The run holds out a share of the records (--validation). It evaluates how well
held-out texts find their partners, or how well the vectors follow the scores.

The directory of the run (--out) gets a checkpoint every --save-every steps and at
the end, and the best weights in best. At the end the best weights stand in
OUT/sentence-transformers, as sentence-transformers opens them. The same command
resumes the run.`,
		Example: `  cohort train embed --init-from all-MiniLM-L6-v2 --data pairs.jsonl
  cohort train embed --init-from xlm-r --data a.csv --columns query,right,wrong
  cohort train embed --init-from xlm-r --data b.tsv --columns a,b --score like`,
	})
}
