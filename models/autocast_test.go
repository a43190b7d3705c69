// SPDX-License-Identifier: Apache-2.0

package models

import (
	"math"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Every model trains under autocast: its loss is that of float32 but for the
// rounding of bfloat16, and so are its gradients, which stay in float32.
func TestModelsUnderAutocast(t *testing.T) {
	b := &nn.Build{Generator: tensor.NewGenerator(9)}
	ids := tensor.FromInt64([]int64{1, 5, 2, 9, 3, 12, 4, 0, 7, 7, 8, 6, 1, 11, 10, 2}, 2, 8)
	language := func(m nn.Module) func(c *nn.Ctx) *tensor.Tensor {
		return func(c *nn.Ctx) *tensor.Tensor { return tensor.CrossEntropy(c.Call(m, ids), ids) }
	}
	image := tensor.Zeros(4, 3, 64, 64)
	b.Generator.Normal(image, 0, 1)
	gpt := NewGPT(b, GPTConfig{Vocab: 13, Context: 8, Width: 32, Heads: 4, Layers: 2})
	llama := NewLlama(b, LlamaConfig{Vocab: 13, Context: 8, Width: 32, Hidden: 48, Heads: 4, KeyHeads: 2, Layers: 2})
	bert := NewBERT(b, BERTConfig{Vocab: 13, Context: 8, Width: 32, Heads: 4, Layers: 2})
	moe := NewMoETransformer(b, smallMoE())
	resnet := NewResNet(b, ResNetConfig{Blocks: [4]int{1, 1, 1, 1}, Classes: 10})
	dlrm := NewDLRM(b, DLRMConfig{Tables: []int{13, 13}, Width: 8, Bottom: []int{5, 16, 8}, Top: []int{12, 1}})
	dense := tensor.Full(0.5, 8, 5)
	bags := tensor.Arange(tensor.CPU(), 8)
	for _, m := range []struct {
		name  string
		model any
		loss  func(c *nn.Ctx) *tensor.Tensor
	}{
		{"gpt", gpt, language(gpt)},
		{"llama", llama, language(llama)},
		{"bert", bert, language(bert)},
		{"moe", moe, language(moe)},
		{"resnet", resnet, func(c *nn.Ctx) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(resnet, image), tensor.FromInt64([]int64{3, 7, 1, 0}))
		}},
		{"dlrm", dlrm, func(c *nn.Ctx) *tensor.Tensor {
			out := c.CallN(dlrm, dense, ids.Select(0, 0), bags, ids.Select(0, 1), bags)[0]
			return tensor.BCEWithLogits(out, tensor.Full(1, 8, 1))
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			pass := func(opts ...nn.CtxOption) (loss, norm float64) {
				c := nn.Training(t.Context(), append(opts, nn.WithGenerator(tensor.NewGenerator(1)))...)
				defer c.Close()
				l := m.loss(c)
				if l.DType() != tensor.Float32 {
					t.Errorf("the loss is %v", l.DType())
				}
				if err := l.Backward(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, p := range nn.Parameters(m.model) {
					g := p.Grad()
					if g == nil {
						t.Errorf("%s has no gradient", p.Name())
						continue
					}
					if g.DType() != tensor.Float32 {
						t.Errorf("the gradient of %s is %v", p.Name(), g.DType())
					}
					for _, x := range g.Float32s() {
						norm += float64(x) * float64(x)
					}
					p.ZeroGrad()
				}
				return l.Item(), math.Sqrt(norm)
			}
			want, wantNorm := pass()
			got, gotNorm := pass(nn.WithAutocast(tensor.BFloat16))
			if math.Abs(got-want) > 0.02*want || got == want {
				t.Errorf("loss %v under autocast, %v without", got, want)
			}
			if math.Abs(gotNorm-wantNorm) > 0.1*wantNorm {
				t.Errorf("norm of the gradients %v under autocast, %v without", gotNorm, wantNorm)
			}
		})
	}
}
