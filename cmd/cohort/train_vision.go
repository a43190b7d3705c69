// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
)

func newTrainVisionCommand() *cobra.Command {
	cfg := train.DefaultVision()
	return recipe{
		task: "vision", settings: &cfg, shared: &cfg.SharedConfig,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckVision(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.Vision(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "vision",
		Short: "Train an image classifier, by default on handwritten digits",
		Long: `Train an image classifier with data parallelism.

The images are 1,797 handwritten digits that are part of this program, or the
images in a directory (--data): MNIST's IDX files, CIFAR's binary files, or JPEG
and PNG files in train/CLASS/ and test/CLASS/, or in CLASS/ (then every tenth image
is for testing). A sample is an image. An error names the file that is damaged and
the place in it. With --on-error skip the run replaces images that cannot be read
by others and counts them.

The directory of the run (--out) gets a checkpoint every --save-every steps and at
the end, and the best weights in best. The same command resumes the run from
there. With --init-from another run, such as one on fewer images, gives its
weights; classes are matched by name.`,
		Example: `  cohort train vision
  cohort train vision --model mlp --epochs 30
  cohort train vision --model resnet18 --data cifar-10-batches-bin --batch 64
  cohort train vision --model resnet50 --data photos --on-error skip --workers 4`,
	})
}
