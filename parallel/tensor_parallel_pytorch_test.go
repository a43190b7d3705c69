// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// plainModel is the model of testdata/tensor_parallel.py: one of a user's own.
type plainModel struct {
	Tokens *nn.Embedding
	Blocks []*plainBlock
	Norm   *nn.LayerNorm
	Head   *nn.Linear
}

type plainBlock struct {
	Norm1, Norm2           *nn.LayerNorm
	Query, Key, Value, Out *nn.Linear
	Up, Down               *nn.Linear
}

const plainWidth, plainHeads, plainVocab = 32, 4, 50

func newPlainModel() *plainModel {
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	linear := func(in, out int) *nn.Linear { return nn.NewLinear(b, in, out) }
	m := &plainModel{Tokens: nn.NewEmbedding(b, plainVocab, plainWidth), Norm: nn.NewLayerNorm(b, plainWidth), Head: linear(plainWidth, plainVocab)}
	for range 2 {
		m.Blocks = append(m.Blocks, &plainBlock{
			Norm1: nn.NewLayerNorm(b, plainWidth), Norm2: nn.NewLayerNorm(b, plainWidth),
			Query: linear(plainWidth, plainWidth), Key: linear(plainWidth, plainWidth), Value: linear(plainWidth, plainWidth), Out: linear(plainWidth, plainWidth),
			Up: linear(plainWidth, 3*plainWidth), Down: linear(3*plainWidth, plainWidth),
		})
	}
	for k, p := range nn.Parameters(m) {
		p.Data().WithFloat32s(func(to []float32) {
			for i := range to {
				v := 0.15 * math.Sin(float64(i)*(0.37+0.01*float64(k))+float64(k))
				if strings.Contains(p.Name(), "norm") && strings.HasSuffix(p.Name(), "weight") {
					v++
				}
				to[i] = float32(v)
			}
		})
	}
	return m
}

func (m *plainModel) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	for _, b := range m.Blocks {
		x = c.Call(b, x)
	}
	return c.Call(m.Head, c.Call(m.Norm, x))
}

func (b *plainBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	h := c.Call(b.Norm1, x)
	heads := func(l *nn.Linear) *tensor.Tensor { return c.Call(l, h).Unflatten(-1, -1, plainWidth/plainHeads) }
	a := tensor.ScaledDotProductAttention(heads(b.Query), heads(b.Key), heads(b.Value), tensor.AttentionOptions{Causal: true})
	x = x.Add(c.Call(b.Out, a.Flatten(2, 3)))
	return x.Add(c.Call(b.Down, c.Call(b.Up, c.Call(b.Norm2, x)).GELU()))
}

const plainPlan = `
tokens: vocabulary
blocks.*.norm?: sequence
blocks.*.query: column in 4
blocks.*.key: column in 4
blocks.*.value: column in 4
blocks.*.out: row
blocks.*.up: column
blocks.*.down: row
norm: sequence
head: column
.: logits
`

// TestPyTorchTensorParallel: a model that ranks share has the losses that PyTorch's
// parallelize_module gives, over steps of AdamW; testdata/tensor_parallel.py wrote them.
func TestPyTorchTensorParallel(t *testing.T) {
	text, err := os.ReadFile("testdata/tensor_parallel.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Tensor       []float64
		Sequence     []float64
		SequenceLoss []float64 `json:"sequence_loss"`
		Ranks        int
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		losses []float64
		config TPConfig
		lost   bool
	}{
		{"tensor", golden.Tensor, TPConfig{WholeSequence: true}, false},
		{"sequence", golden.Sequence, TPConfig{}, false},
		{"sequence, loss", golden.SequenceLoss, TPConfig{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.losses) < 10 {
				t.Fatalf("%d losses are recorded", len(c.losses))
			}
			err := spawn(t, golden.Ranks, func(ctx context.Context, g *dist.Group) error {
				plan, err := ParsePlan(plainPlan)
				if err != nil {
					return err
				}
				m := newPlainModel()
				shared, err := shareModel(ctx, g, m, plan, c.config)
				if err != nil {
					return err
				}
				shared.t.lossFollows = func(*tensor.Tape) bool { return c.lost }
				opt := optim.NewAdamW(shared.params, optim.AdamWOptions{LR: 3e-3, WeightDecay: 0.01})
				for step, want := range c.losses {
					opt.ZeroGrad()
					got, err := shared.pass(ctx, func(cc *nn.Ctx) *tensor.Tensor {
						ids, targets := plainBatch(step)
						return cc.CallN(&nn.CrossEntropyLoss{}, cc.Call(m, ids), targets)[0]
					})
					if err != nil {
						return err
					}
					if math.Abs(got-want) > 1e-5*want {
						return fmt.Errorf("step %d: the loss is %v, PyTorch's is %v", step, got, want)
					}
					opt.Step(nil)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func plainBatch(step int) (ids, targets *tensor.Tensor) {
	const batch, time = 4, 12
	in, out := make([]int64, batch*time), make([]int64, batch*time)
	for k := range in {
		i := int64(k + 3*step)
		in[k], out[k] = (i*i*7+i*3)%plainVocab, (i*11+5)%plainVocab
	}
	out[1] = tensor.IgnoreIndex
	return tensor.FromInt64(in, batch, time), tensor.FromInt64(out, batch, time)
}
