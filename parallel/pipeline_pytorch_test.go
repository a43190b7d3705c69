// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// pytorchPipeline is what testdata/pipeline.py has written: losses of torch.distributed.pipelining.
type pytorchPipeline struct {
	Torch                     string
	Blocks, Width, Classes    int
	Rows, Microbatches, Steps int
	Rate                      float64
	Losses                    map[string][]float64
}

// formula returns the values that the script computes.
func formula(seed int, shape ...int) *tensor.Tensor {
	x := tensor.Zeros(shape...)
	x.WithFloat32s(func(data []float32) {
		for i := range data {
			data[i] = float32((i*37+seed*11+i*i*3)%23-11) / 22
		}
	})
	return x
}

// residualBlock is the block of the script: tanh of a linear layer, added to its input.
type residualBlock struct{ Linear *nn.Linear }

func (b *residualBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(b.Linear, x).Tanh().Add(x)
}

// residuals is the model of the script.
type residuals struct {
	Blocks []*residualBlock
	Head   *nn.Linear
}

func (m *residuals) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	for _, b := range m.Blocks {
		x = c.Call(b, x)
	}
	return c.Call(m.Head, x)
}

func (g *pytorchPipeline) task() pipeTask {
	linear := func(seed, out int, bias int) *nn.Linear {
		return &nn.Linear{Weight: nn.NewParameter(formula(seed, out, g.Width)), Bias: nn.NewParameter(formula(bias, out))}
	}
	return pipeTask{
		model: func() any {
			m := &residuals{Head: linear(99, g.Classes, 98)}
			for i := range g.Blocks {
				m.Blocks = append(m.Blocks, &residualBlock{linear(i, g.Width, i+50)})
			}
			return m
		},
		example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Float32, g.Rows, g.Width)},
		batch: func(step, number int) ([]*tensor.Tensor, *tensor.Tensor) {
			x := formula(1000+step, g.Microbatches*g.Rows, g.Width).Narrow(0, number*g.Rows, g.Rows).Contiguous()
			y := make([]int64, g.Rows)
			for i := range y {
				y[i] = int64(((number*g.Rows+i)*3 + step) % g.Classes)
			}
			return []*tensor.Tensor{x}, tensor.FromInt64(y)
		},
	}
}

// TestPipelineIsPyTorchs: each schedule has the losses of torch.distributed.pipelining.
func TestPipelineIsPyTorchs(t *testing.T) {
	text, err := os.ReadFile("testdata/pipeline_2.15.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden pytorchPipeline
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Losses) < 6 {
		t.Errorf("the golden values are of %d schedules", len(golden.Losses))
	}
	k := golden.task()
	for name, want := range golden.Losses {
		t.Run(name, func(t *testing.T) {
			err := onPipeline(t, k, 2, PipelineConfig{Schedule: name}, func(ctx context.Context, p *Parallel) error {
				var ps []*nn.Parameter
				for _, w := range nn.Parameters(p.Model) {
					if !p.IsAway(w) {
						ps = append(ps, w)
					}
				}
				opt := optim.NewSGD(ps, optim.SGDOptions{LR: golden.Rate})
				for step := range golden.Steps {
					opt.ZeroGrad()
					loss, err := p.Step(ctx, k.microbatches(p, step, golden.Microbatches))
					if err != nil {
						return err
					}
					if !closeTo(loss.Item(), want[step], 1e-6) {
						t.Errorf("rank %d: the loss of step %d is %v, PyTorch's %v", p.pipe.rank, step, loss.Item(), want[step])
					}
					opt.Step(nil)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
