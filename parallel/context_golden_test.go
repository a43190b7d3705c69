// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pytorchRing is what testdata/context_parallel.py writes.
type pytorchRing struct {
	Batch, Heads, Dim int
	Inputs            map[int]struct{ Q, K, V, G []float32 }
	Cases             []struct {
		Ranks, Time     int
		Causal, Ring    bool
		Tokens          [][]int
		Out, DQ, DK, DV []float32
	}
}

// tabled is attention whose queries, keys and values stand in tables, by place and row, so that
// they are parameters that have gradients.
type tabled struct {
	Query, Key, Value *nn.Embedding
	Attention         *nn.DotProductAttention
}

func (m *tabled) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	heads := func(e *nn.Embedding) *tensor.Tensor {
		x := c.Call(e, ids)
		return x.Reshape(x.Dim(0), x.Dim(1), x.Dim(2)/m.Attention.HeadDim, m.Attention.HeadDim)
	}
	y := c.CallN(m.Attention, heads(m.Query), heads(m.Key), heads(m.Value))[0]
	return y.Reshape(y.Dim(0), y.Dim(1), y.Dim(2)*y.Dim(3))
}

// TestPyTorchRing: attention over axis cp gives what PyTorch's ring attention gives, and a rank
// has the tokens that it has there.
func TestPyTorchRing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "context_parallel_2.15.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden pytorchRing
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	for _, gc := range golden.Cases {
		in, width := golden.Inputs[gc.Time], golden.Heads*golden.Dim
		rows := golden.Batch * gc.Time
		table := func(values []float32) *nn.Embedding {
			return &nn.Embedding{Weight: nn.NewParameter(tensor.FromFloat32(slices.Clone(values), rows, width))}
		}
		build := func(*nn.Build) any {
			return &tabled{table(in.Q), table(in.K), table(in.V), &nn.DotProductAttention{HeadDim: golden.Dim, Causal: gc.Causal}}
		}
		for _, form := range []string{ringAttention, headsAttention} {
			if golden.Heads%gc.Ranks != 0 && form == headsAttention {
				continue
			}
			t.Run(fmt.Sprintf("%d tokens on %d, causal %t, %s", gc.Time, gc.Ranks, gc.Causal, form), func(t *testing.T) {
				err := withContext(t, gc.Ranks, build, ContextConfig{Attention: form}, func(ctx context.Context, g *dist.Group, p *contextParallel) (err error) {
					if tokens := (zigzag{gc.Time, gc.Ranks}).runs(g.Rank()); gc.Tokens != nil {
						var mine []int
						for _, r := range tokens {
							for at := r[0]; at < r[1]; at++ {
								mine = append(mine, at)
							}
						}
						if !slices.Equal(mine, gc.Tokens[g.Rank()]) {
							return fmt.Errorf("rank %d has the tokens %v, in PyTorch %v", g.Rank(), mine, gc.Tokens[g.Rank()])
						}
					}
					p.inStep = func(*nn.Ctx) bool { return false }
					c := nn.Training(ctx)
					defer c.Close()
					defer c.Recover(&err)
					ids := tensor.Arange(tensor.CPU(), rows).Reshape(golden.Batch, gc.Time)
					y := c.With(p).Call(p.model.(nn.Module), ids)
					if d := apart(y.Float32s(), gc.Out) / length(gc.Out); d > 1e-6 {
						return fmt.Errorf("the result differs by %.2g", d)
					}
					if err := y.Mul(c.Tape().Const(tensor.FromFloat32(in.G, y.Shape()...))).Sum().Backward(ctx); err != nil {
						return err
					}
					m := p.model.(*tabled)
					for i, e := range []*nn.Embedding{m.Query, m.Key, m.Value} {
						if err := g.AllReduce(ctx, e.Weight.Grad(), dist.Sum); err != nil {
							return err
						}
						want := [][]float32{gc.DQ, gc.DK, gc.DV}[i]
						if d := apart(e.Weight.Grad().Float32s(), want) / length(want); d > 1e-6 {
							return fmt.Errorf("the gradient of operand %d differs by %.2g", i, d)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}
