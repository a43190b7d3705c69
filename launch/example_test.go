// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/launch"
)

func ExampleSpawn() {
	err := launch.Spawn(context.Background(), 2, func(ctx context.Context) error {
		fmt.Println("rank", os.Getenv("RANK"), "of", os.Getenv("WORLD_SIZE"))
		return nil
	})
	launch.Exit(err)
}

func ExampleRun() {
	err := launch.Run(context.Background(), launch.Config{
		Program: "train.py", Args: []string{"--epochs", "3"}, NumRanks: 2,
	})
	launch.Exit(err)
}
