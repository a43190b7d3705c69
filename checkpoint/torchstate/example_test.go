// SPDX-License-Identifier: Apache-2.0

package torchstate_test

import (
	"context"
	"log"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchstate"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/train"
)

// A rank goes on from the checkpoint of a PyTorch job: it reads its part alone.
func ExampleFromDCP() {
	ctx := context.Background()
	model, err := parallel.NewSingle(nn.NewLinear(&nn.Build{}, 4, 2))
	if err != nil {
		log.Fatal(err)
	}
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 1e-3})

	c, err := dcp.Open(ctx, storage.Dir("checkpoints/step-1000"), "")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	state, err := torchstate.FromDCP(c)
	if err != nil {
		log.Fatal(err)
	}
	if err := checkpoint.LoadParts(state.Model, train.ModelParts(model)); err != nil {
		log.Fatal(err)
	}
	if err := checkpoint.LoadParts(state.Optimizer, train.OptimizerParts(model, opt)); err != nil {
		log.Fatal(err)
	}
}

// The newest checkpoint of a run is written for a PyTorch job.
func ExampleItems() {
	ctx := context.Background()

	saved, err := checkpoint.Open(ctx, storage.Dir("out/run"), "")
	if err != nil {
		log.Fatal(err)
	}
	model, err := saved.Source(checkpoint.Model)
	if err != nil {
		log.Fatal(err)
	}
	opt, err := saved.Source(checkpoint.Optimizer)
	if err != nil {
		log.Fatal(err)
	}
	var groups []optim.ParamGroup
	if err := saved.Value("param_groups", &groups); err != nil {
		log.Fatal(err)
	}
	items, err := torchstate.Items(model, opt, groups)
	if err != nil {
		log.Fatal(err)
	}
	if err := dcp.Write(ctx, storage.Dir("out/for-torch"), "", items); err != nil {
		log.Fatal(err)
	}
}
