// SPDX-License-Identifier: Apache-2.0

// Command pretrained continues the training of a GPT-2, Llama or BERT. It reads a
// folder that Hugging Face's save_pretrained wrote, trains in bfloat16, and saves
// the model as such a folder:
//
//	go run ./examples/pretrained models/testdata/golden/llama out/llama
//
// The task is a toy: to predict the number after each number. For your own data,
// replace the function batch.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

func main() {
	steps := flag.Int("steps", 100, "steps of training")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: pretrained [-steps N] FROM TO")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := finetune(ctx, flag.Arg(0), flag.Arg(1), *steps); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func finetune(ctx context.Context, from, to string, steps int) error {
	if _, err := os.Stat(to); err == nil {
		return fmt.Errorf("%s is there already: name a folder that is not", to)
	}
	model, err := models.LoadHuggingFace(from)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d parameters\n", from, nn.NumParams(model))
	random := tensor.NewGenerator(1)
	opt := optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
	schedule := optim.WarmupCosine(steps/10, steps, 0.1)
	for step := range steps {
		ids, next := batch(random, 16, 16)
		schedule.Apply(opt, step)
		opt.ZeroGrad()
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			c = c.With(nn.Recompute(isBlock)) // less memory, more time: for large models
			return tensor.CrossEntropy(c.Call(model, ids), next)
		}, nn.WithAutocast(tensor.BFloat16), nn.WithGenerator(random))
		if err != nil {
			return err
		}
		norm, scale := optim.ClipGradNorm(nn.Parameters(model), 1)
		if err := optim.CheckGradNorm(nn.Parameters(model), norm.Item()); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		opt.Step(scale)
		if step%20 == 0 || step == steps-1 {
			fmt.Printf("step %3d  loss %.3f\n", step, loss)
		}
	}
	return models.SaveHuggingFace(to, model, 0, nil)
}

func isBlock(module any) bool {
	switch module.(type) {
	case *models.GPTBlock, *models.LlamaBlock, *models.BERTLayer:
		return true
	}
	return false
}

// batch returns tokens and the token after each of them, [size, length].
func batch(g *tensor.Generator, size, length int) (ids, next *tensor.Tensor) {
	a, b := make([]int64, size*length), make([]int64, size*length)
	for i := range a {
		a[i] = int64(g.Float64() * 50)
		b[i] = a[i] + 1
	}
	return tensor.FromInt64(a, size, length), tensor.FromInt64(b, size, length)
}
