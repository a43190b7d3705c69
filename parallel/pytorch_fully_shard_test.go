// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// fullyShardRecord is what testdata/fully_shard.py has written.
type fullyShardRecord struct {
	Initial map[string]recordedTensor
	Batches [][]struct { // of each rank and step
		IDs, Targets [][]int64
	}
	MaxNorm float64 `json:"max_norm"`
	Cases   []fullyShardCase
}

type recordedTensor struct {
	Shape  []int
	Values []float64
}

// fullyShardCase is one run of PyTorch.
type fullyShardCase struct {
	Mesh      []int
	Optimizer string
	Ranks     []struct {
		Losses, Norms []float64
		Shards        map[string]recordedTensor // after the last step
	}
}

// split is the mesh: replicate by shard.
func (c fullyShardCase) split() (replicate, shard int) {
	if len(c.Mesh) == 1 {
		return 1, c.Mesh[0]
	}
	return c.Mesh[0], c.Mesh[1]
}

// recordedModel is the model of the record. Its head is its embedding.
type recordedModel struct {
	Tokens *nn.Embedding
	Blocks []*recordedBlock
	Norm   *nn.LayerNorm
}

type recordedBlock struct {
	Norm     *nn.LayerNorm
	Up, Down *nn.Linear
}

func newRecordedModel(first map[string]recordedTensor) (*recordedModel, error) {
	const width, hidden = 10, 7
	b := &nn.Build{}
	m := &recordedModel{Tokens: nn.NewEmbedding(b, 13, width), Norm: nn.NewLayerNorm(b, width)}
	for range 2 {
		m.Blocks = append(m.Blocks, &recordedBlock{nn.NewLayerNorm(b, width), nn.NewLinear(b, width, hidden), nn.NewLinear(b, hidden, width)})
	}
	for _, p := range nn.Parameters(m) {
		r, has := first[p.Name()]
		if !has || !slices.Equal(r.Shape, p.Data().Shape()) {
			return nil, fmt.Errorf("the record's %s is %v, want the shape %v", p.Name(), r.Shape, p.Data().Shape())
		}
		p.Data().CopyFrom(tensor.FromFloat64(r.Values, r.Shape...).To(tensor.Float32))
	}
	return m, nil
}

// Forward takes ids [batch, time] to logits [batch, time, vocabulary].
func (m *recordedModel) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	for _, b := range m.Blocks {
		x = c.Call(b, x)
	}
	return tensor.Linear(c.Call(m.Norm, x), c.Param(m.Tokens.Weight), nil)
}

func (b *recordedBlock) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return x.Add(c.Call(b.Down, c.Call(b.Up, c.Call(b.Norm, x)).GELU()))
}

// TestPyTorchFullyShard: ranks of ours that begin with PyTorch's values have the
// losses and norms of PyTorch's fully_shard, and after four steps its shards.
// DDP, whose ranks have all values, has the same.
func TestPyTorchFullyShard(t *testing.T) {
	text, err := os.ReadFile("testdata/fully_shard_2.15.json")
	if err != nil {
		t.Fatal(err)
	}
	var record fullyShardRecord
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	for _, c := range record.Cases {
		for _, strategy := range []string{"ddp", "fsdp"} {
			t.Run(fmt.Sprint(strategy, c.Mesh, c.Optimizer), func(t *testing.T) {
				replicate, shard := c.split()
				d := draw{Strategy: strategy, Replicate: replicate, Shard: shard}
				err := spawn(t, replicate*shard, func(ctx context.Context, g *dist.Group) error {
					return record.check(ctx, g, c, d)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// check trains as one rank of PyTorch has, and compares.
func (r fullyShardRecord) check(ctx context.Context, g *dist.Group, c fullyShardCase, d draw) error {
	const limit = 2e-5
	m, err := newRecordedModel(r.Initial)
	if err != nil {
		return err
	}
	s, err := d.wrap(ctx, g, m)
	if err != nil {
		return err
	}
	params := nn.Parameters(m)
	var opt optim.Optimizer = optim.NewSGD(params, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	if c.Optimizer == "adamw" {
		opt = optim.NewAdamW(params, optim.AdamWOptions{LR: 0.01, WeightDecay: 0.01, Eps: 1e-6})
	}
	want := c.Ranks[g.Rank()]
	for step, b := range r.Batches[g.Rank()][:len(want.Losses)] {
		opt.ZeroGrad()
		ids, targets := slices.Concat(b.IDs...), slices.Concat(b.Targets...)
		loss, err := nn.Backward(ctx, func(c *nn.Ctx) *tensor.Tensor {
			logits := c.Call(s, tensor.FromInt64(ids, len(b.IDs), len(b.IDs[0])))
			return tensor.CrossEntropy(logits.Reshape(len(ids), logits.Dim(2)), tensor.FromInt64(targets))
		})
		if err != nil {
			return err
		}
		norm, scale, err := s.ClipGradNorm(ctx, params, r.MaxNorm)
		if err != nil {
			return err
		}
		opt.Step(scale)
		if off := math.Abs(loss-want.Losses[step]) / want.Losses[step]; !(off < limit) {
			return fmt.Errorf("step %d: the loss is %v, PyTorch's %v", step, loss, want.Losses[step])
		}
		if off := math.Abs(norm.Item()-want.Norms[step]) / want.Norms[step]; !(off < limit) {
			return fmt.Errorf("step %d: the norm is %v, PyTorch's %v", step, norm.Item(), want.Norms[step])
		}
	}
	got, shards := make(map[string]part), make(map[string]part)
	for _, p := range params {
		name := p.Name()
		got[name] = partOf(p.Data())
		if shards[name], err = c.partOf(g.Rank(), name, d.Strategy != "ddp"); err != nil {
			return err
		}
	}
	return closeParts("", got, shards, limit, nil)
}

// partOf is what PyTorch's rank has of a parameter, or all of it.
func (c fullyShardCase) partOf(rank int, name string, sharded bool) (part, error) {
	own := c.Ranks[rank].Shards[name]
	if sharded {
		return part{own.Shape, own.Values}, nil
	}
	_, shard := c.split()
	whole := part{shape: slices.Clone(own.Shape)}
	whole.shape[0] = 0
	for _, r := range c.Ranks[:shard] {
		whole.shape[0] += r.Shards[name].Shape[0]
		whole.elements = append(whole.elements, r.Shards[name].Values...)
	}
	return whole, nil
}
