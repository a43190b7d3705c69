// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// toy is a small model with a bit of everything: ids [batch] to logits
// [batch, classes].
type toy struct {
	Tokens *nn.Embedding
	Hidden *nn.Sequential
	Norm   *nn.LayerNorm
	Head   *nn.Linear
	Seen   *nn.Buffer
}

const (
	numIDs  = 31
	width   = 32
	classes = 11
)

func newToy(seed int64, width int) *toy {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	return &toy{
		Tokens: nn.NewEmbedding(b, numIDs, width),
		Hidden: nn.NewSequential(nn.NewLinear(b, width, 2*width), &nn.GELU{}, nn.NewLinear(b, 2*width, width), &nn.ReLU{}),
		Norm:   nn.NewLayerNorm(b, width),
		Head:   nn.NewLinear(b, width, classes),
		Seen:   &nn.Buffer{Data: tensor.Full(float64(seed), 3)},
	}
}

func (m *toy) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Tokens, ids)
	return c.Call(m.Head, c.Call(m.Norm, x.Add(c.Call(m.Hidden, x))))
}

// nativeOf returns what a DDP without the option WithPyTorch is made of.
func nativeOf(d *DDP) *nativeReducer { return d.reducer.(*nativeReducer) }

// batches gives the rows that a rank trains on: what the samples of the stream
// with their numbers are.
type batches struct {
	stream *data.Stream
	at     int64
}

func newBatches(rank, world, perRank int) *batches {
	s, err := data.NewStream(data.StreamConfig{Len: 997, Batch: perRank, Rank: rank, World: world, Shuffle: true, Seed: 5})
	if err != nil {
		panic(err)
	}
	return &batches{stream: s}
}

func (b *batches) next() (ids, targets *tensor.Tensor) {
	var keys []data.Key
	keys, b.at = b.stream.Batch(nil, b.at)
	in, out := make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		in[i] = int64(k.Index % numIDs)
		out[i] = (in[i]*in[i] + int64(k.Index/numIDs%3)) % classes // one of three: some of it cannot be learned
	}
	return tensor.FromInt64(in), tensor.FromInt64(out)
}

var optimizers = map[string]func(ps []*nn.Parameter) optim.Optimizer{
	"sgd": func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewSGD(ps, optim.SGDOptions{LR: 0.1, Momentum: 0.9})
	},
	"adamw": func(ps []*nn.Parameter) optim.Optimizer {
		return optim.NewAdamW(ps, optim.AdamWOptions{LR: 5e-3, WeightDecay: 0.01})
	},
}

// backward runs one forward and backward pass and returns the loss.
func backward(ctx context.Context, m nn.Module, ids, targets *tensor.Tensor) (loss float64, err error) {
	c := nn.Training(ctx)
	defer c.Close()
	defer c.Recover(&err)
	l := tensor.CrossEntropy(c.Call(m, ids), targets)
	if err := l.Backward(ctx); err != nil {
		return 0, err
	}
	return l.Item(), nil
}

// small makes several buckets even of the model of these tests.
var small = WithBucketBytes(1024, 4096)

// train runs steps of DDP and returns the model.
func train(ctx context.Context, g *dist.Group, optimizer string, numSteps int) (*toy, error) {
	m := newToy(int64(g.Rank()), width) // DDP makes them equal
	ddp, err := NewDDP(ctx, m, g, small)
	if err != nil {
		return nil, err
	}
	opt := optimizers[optimizer](nn.Parameters(m))
	in := newBatches(g.Rank(), g.Size(), 8)
	for range numSteps {
		opt.ZeroGrad()
		ids, targets := in.next()
		if _, err := backward(ctx, ddp, ids, targets); err != nil {
			return nil, err
		}
		opt.Step(nil)
	}
	return m, nil
}

// digest tells models apart by every bit of their state.
func digest(m any) string {
	h := crc32.NewIEEE()
	for _, s := range nn.StateDict(m) {
		fmt.Fprint(h, s.Name, s.Tensor.Shape())
		h.Write(s.Tensor.Buffer().Data)
	}
	return fmt.Sprintf("%08x", h.Sum32())
}

// gradients returns a copy of every gradient.
func gradients(m any) map[string][]float32 {
	out := make(map[string][]float32)
	for _, p := range nn.Parameters(m) {
		if g := p.Grad(); g != nil {
			out[p.Name()] = g.Float32s()
		}
	}
	return out
}

// difference returns the largest relative difference of two gradients of a
// parameter, relative to its largest element, over all parameters.
func difference(t *testing.T, got, want map[string][]float32) (worst float64, where string) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Errorf("gradients of %d parameters, want those of %d", len(got), len(want))
	}
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			t.Errorf("gradient of %s has %d elements, want %d", name, len(g), len(w))
			continue
		}
		scale, off := 0.0, 0.0
		for i := range w {
			scale = max(scale, abs(w[i]))
			off = max(off, abs(g[i]-w[i]))
		}
		if off == 0 {
			continue // of zeros
		}
		if rel := off / scale; rel > worst || rel != rel {
			worst, where = rel, name
		}
	}
	return worst, where
}

func abs(x float32) float64 { return max(float64(x), -float64(x)) }

// sameBits compares two sets of gradients bit for bit.
func sameBits(a, b map[string][]float32) bool {
	for name, v := range a {
		if !slices.Equal(v, b[name]) {
			return false
		}
	}
	return len(a) == len(b)
}
