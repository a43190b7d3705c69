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
		settings: &cfg,
		check: func(ctx context.Context, given map[string]string) ([]byte, error) {
			return train.CheckVision(ctx, cfg, given)
		},
		run: func(ctx context.Context, group *dist.Group, given map[string]string, report train.Reporter) error {
			return train.Vision(ctx, group, cfg, given, report)
		},
	}.command(&cobra.Command{
		Use:   "vision",
		Short: "Train a classifier of images, by default of handwritten digits",
		Long: `Train a classifier of images with distributed data parallelism.

The images are 1,797 handwritten digits that are part of this program, or those
of a directory (--data): MNIST's IDX files, CIFAR's binary files, or JPEG and PNG
files, either in train/CLASS/ and test/CLASS/ or in CLASS/, of which every tenth
is then for testing. What in a file is damaged is named; with --on-error skip
images that cannot be read are replaced by others and counted.

The run's directory (--out) gets a checkpoint every --save-every steps and at
the end, and the best in best; run again, it resumes. With --init-from another run,
such as one of fewer images, gives its weights, classes by their names.`,
		Example: `  cohort train vision
  cohort train vision --model mlp --epochs 30
  cohort train vision --model resnet18 --data cifar-10-batches-bin --batch 64
  cohort train vision --model resnet50 --data photos --on-error skip --workers 4`,
	})
}
