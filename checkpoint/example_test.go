// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// A model is saved and loaded into another one of its size.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	trained := nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(1)}, 3, 2)
	err = checkpoint.Save(ctx, dir, 100, func(w *checkpoint.Writer) error {
		return w.WriteTensors(checkpoint.ModelFile, nn.StateDict(trained).All(), nil)
	}, 2) // keep the two newest
	if err != nil {
		panic(err)
	}

	latest, _, err := checkpoint.Latest(ctx, dir)
	if err != nil {
		panic(err)
	}
	fresh := nn.NewLinear(&nn.Build{}, 3, 2)
	if err := latest.LoadTensors(checkpoint.ModelFile, nn.StateDict(fresh).All()); err != nil {
		panic(err)
	}
	fmt.Println(latest.Step, fresh.Weight.Data().Float32s()[0] == trained.Weight.Data().Float32s()[0])
	// Output: 100 true
}
