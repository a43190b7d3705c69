// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// A model is saved and loaded into another one of its size. On several ranks, group is theirs,
// and each rank gives what it holds.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	trained := nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(1)}, 3, 2)
	fresh := nn.NewLinear(&nn.Build{}, 3, 2)

	parts := func(net *nn.Linear) map[string][]checkpoint.Part {
		return map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(net).All())}
	}
	err = checkpoint.Save(ctx, nil, storage.Dir(dir), 100, checkpoint.State{Sections: parts(trained)})
	if err != nil {
		panic(err)
	}
	step, err := checkpoint.Load(ctx, nil, storage.Dir(dir), checkpoint.State{Sections: parts(fresh)})
	if err != nil {
		panic(err)
	}
	fmt.Println(step, fresh.Weight.Data().Float32s()[0] == trained.Weight.Data().Float32s()[0])
	// Output: 100 true
}
