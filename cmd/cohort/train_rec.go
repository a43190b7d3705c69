// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

func newTrainRecCommand() *cobra.Command {
	cfg := train.DefaultRec()
	return recipe{
		settings: &cfg,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckRec(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.Rec(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "rec",
		Short: "Train a recommender on a table, by default one of generated clicks",
		Long: `Train a recommender with distributed data parallelism: from the categories and
numbers of a row it tells how likely its label is 1, such as a click.

The rows are those of a CSV file with a header (--data), plain or gzip, or of a
directory of them. Which columns are which is told by the first rows where no
flags name them; --print-config shows it. Values of categories are hashed into
the --buckets rows of a table each, whose gradients go by rows. Without --data
the clicks are generated, so that the best possible figures are known.

The run's directory (--out) gets a checkpoint every --save-every steps and at
the end, and the best in best; run again, it resumes. With --init-from another run,
such as one of fewer rows, gives its weights, columns by their names.`,
		Example: `  cohort train rec
  cohort train rec --model mf --batch 1024
  cohort train rec --data clicks.csv --label clicked --categories user,item --print-config
  cohort train rec --data ratings.csv --model mf --label rating --positive 4 --categories user_id,item_id`,
	})
}
