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
		task: "rec", settings: &cfg, shared: &cfg.SharedConfig,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckRec(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			cfg.StartServers = startRunServers(cfg.Out)
			return train.Rec(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "rec",
		Short: "Train a recommender on a table, by default of generated clicks",
		Long: `Train a recommender with data parallelism. From the categories and numbers of a
row, it predicts how likely the label of the row is 1, such as a click.

The rows come from a CSV file with a header (--data), plain or gzip, or from a
directory of such files. A sample is a row. The first rows of the file tell which
columns are numbers and which are categories, unless flags name the columns;
--print-config shows the result. The values of a category are hashed into the
--buckets rows of its table. Without --data the clicks are generated: then the
best possible result is known.

The directory of the run (--out) gets a checkpoint every --save-every steps and at
the end, and the best weights in best. The same command resumes the run from
there. With --init-from another run, such as one on fewer rows, gives its weights;
columns are matched by name.

With --ps the tables lie on parameter servers, which start beside rank 0 and end with
the run; --ps-at names servers that run already (cohort ps serve). The layers stay in
the ranks, unless --ps-layers gives the servers these too. Checkpoints have the tables as
those of a run without servers, and are the same, so a run may go on with other servers
or without. A server that is killed comes back with its rows. With --staleness the rows
of a step are pulled during the step before, and may lack that many steps. With
--ps-consistency asynchronous no rank waits for another's pushes.`,
		Example: `  cohort train rec
  cohort train rec --model mf --batch 1024
  cohort train rec --ps 2
  cohort train rec --data clicks.csv --label clicked --print-config
  cohort train rec --data ratings.csv --model mf --label rating --positive 4 \
      --categories user_id,item_id`,
	})
}
