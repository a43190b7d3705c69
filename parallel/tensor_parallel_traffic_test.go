// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// sketched returns what a rank of tp would send in a training pass of batch rows of time tokens,
// and how much memory the values of the pass would take: computed on tensor.Meta by one process.
func sketched(build func(b *nn.Build) nn.Module, config TPConfig, ranks, rank, batch, time int, opts ...nn.CtxOption) (sent traffic, peak int64, err error) {
	m := build(&nn.Build{Generator: tensor.NewGenerator(7), Device: tensor.Meta})
	around := func(c *nn.Ctx) *nn.Ctx { return c }
	if ranks > 1 {
		sketch, err := mesh.Sketch(rank, mesh.Axis{Name: tensorAxis, Size: ranks})
		if err != nil {
			return nil, 0, err
		}
		lays := map[*nn.Parameter]*lay{}
		for _, p := range nn.Parameters(m) {
			lays[p] = &lay{shape: p.Data().Shape()}
		}
		t, err := newTensorParallel(m, sketch, nil, config, lays)
		if err == nil {
			err = t.lay()
		}
		if err != nil {
			return nil, 0, err
		}
		for p, l := range lays {
			shape, err := mesh.LocalShape(l.shape, []int{ranks}, []mesh.Placement{l.at[tensorAxis]}, []int{rank})
			if err != nil {
				return nil, 0, err
			}
			p.SetData(tensor.New(tensor.Meta, p.Data().DType(), shape...))
		}
		t.lossFollows = func(*tensor.Tape) bool { return true }
		sent = t.sent
		around = func(c *nn.Ctx) *nn.Ctx { return c.With(t) }
	}
	c := nn.Training(context.Background(), append(opts, nn.WithDevice(tensor.Meta), nn.WithGenerator(tensor.NewGenerator(3)))...)
	defer c.Close()
	defer c.Recover(&err)
	c = around(c)
	ids := tensor.New(tensor.Meta, tensor.Int64, batch, time)
	loss := c.CallN(&nn.CrossEntropyLoss{}, c.Call(m, ids), ids)[0]
	if err := loss.Backward(c); err != nil {
		return nil, 0, err
	}
	return sent, c.Tape().PeakBytes(), nil
}

// TestSharedTraffic: what the ranks of tp send in a pass is what a plan on tensor.Meta says of
// it, and what a formula says.
func TestSharedTraffic(t *testing.T) {
	const batch, time, width, layers, vocab, ranks = 3, 8, 16, 2, 31, 2
	build := tinyGPT(models.GPTConfig{Vocab: vocab})
	for _, c := range []struct {
		config TPConfig
		// How many values [batch, time, width] cross the axis whole, each by a reduction or a gather.
		halves int64
	}{
		// An all-reduce is two of them. Forward: the embedding, and two in each layer. Backward: two in
		// each layer, and the output layer.
		{TPConfig{WholeSequence: true}, 2 * (1 + 2*layers + 2*layers + 1)},
		// The same, in two parts.
		{TPConfig{KeepGathered: true}, (1 + 4*layers + 1) + (1 + 4*layers + 1)},
		// Two in each layer are gathered again.
		{TPConfig{}, (1 + 4*layers + 1) + (1 + 4*layers + 1) + 2*layers},
	} {
		perRank := c.halves * batch * time * width * 4 / ranks
		perRank += 3 * batch * time * 4 // of the loss: an all-reduce of one number a row, and of two
		measured := make([]traffic, ranks)
		bytes := make([]int64, ranks)
		s := sharedCase{build: build, time: time, vocab: vocab}
		err := spawn(t, ranks, func(ctx context.Context, g *dist.Group) error {
			m := build(&nn.Build{Generator: tensor.NewGenerator(7)})
			shared, err := shareModel(ctx, g, m, nil, c.config)
			if err != nil {
				return err
			}
			shared.t.lossFollows = func(*tensor.Tape) bool { return true }
			before := g.Traffic()
			shared.check, shared.params = false, nil // the sums of gradients are the engine's
			if _, err = shared.pass(ctx, func(c *nn.Ctx) *tensor.Tensor { return s.compute(c, m) }); err != nil {
				return err
			}
			measured[g.Rank()], bytes[g.Rank()] = shared.t.sent, g.Traffic().Since(before).SentBytes
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for rank, got := range measured {
			planned, _, err := sketched(build, c.config, ranks, rank, batch, time)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != planned.String() || got.total() != perRank {
				t.Errorf("%+v, rank %d: sent %v, planned %v, in all %d and by the formula %d", c.config, rank, got, planned, got.total(), perRank)
			}
		}
		t.Logf("%+v: %v; the group counts %d", c.config, measured[0], bytes)
	}
}

// watcher looks at the sizes of all values of a pass.
type watcher struct{ largest map[string]int }

func (w *watcher) Computed(op tensor.Operation) {
	w.largest[op.Name] = max(w.largest[op.Name], op.Out.NumElems())
}
func (*watcher) Recorded(string, *tensor.Tensor, []*tensor.Tensor) {}
func (*watcher) Watched(_, _ *tensor.Tensor, _ tensor.Leaf)        {}
func (*watcher) Backward([]*tensor.Tensor)                         {}

// TestLogitsStayShared: in a training pass whose loss the ranks share, no rank has a value of
// the size of all logits, nor of their gradients.
func TestLogitsStayShared(t *testing.T) {
	const vocab, rows = 509, 3 * 8
	for name, build := range map[string]func(b *nn.Build) nn.Module{
		"gpt": tinyGPT(models.GPTConfig{Vocab: vocab}), "llama": tinyLlama(models.LlamaConfig{Vocab: vocab}), "bert, untied": func(b *nn.Build) nn.Module {
			return models.NewBERT(b, models.BERTConfig{Vocab: vocab, Context: 16, Width: 16, Heads: 4, Layers: 1, Untied: true})
		},
	} {
		s := sharedCase{build: build, time: 8, vocab: vocab}
		err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
			m := build(&nn.Build{Generator: tensor.NewGenerator(7)})
			shared, err := shareModel(ctx, g, m, nil, TPConfig{})
			if err != nil {
				return err
			}
			shared.check = false
			for _, lost := range []bool{true, false} {
				shared.t.lossFollows = func(*tensor.Tape) bool { return lost }
				w := &watcher{map[string]int{}}
				if _, err := shared.pass(ctx, func(c *nn.Ctx) *tensor.Tensor {
					c.Tape().Observe(w)
					return s.compute(c, m)
				}); err != nil {
					return err
				}
				whole := ""
				for op, n := range w.largest {
					if n >= rows*vocab {
						whole = op
					}
				}
				if lost == (whole != "") {
					return fmt.Errorf("loss shared: %t: values as large as all logits: %q of %v", lost, whole, w.largest)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSharedMemory: the values of a pass take less memory where more ranks share the model.
func TestSharedMemory(t *testing.T) {
	build := func(b *nn.Build) nn.Module {
		return models.NewGPT(b, models.GPTConfig{Vocab: 1024, Context: 128, Width: 128, Heads: 4, Layers: 4})
	}
	peaks := map[string][]int64{}
	for _, config := range []TPConfig{{WholeSequence: true}, {KeepGathered: true}, {}} {
		name := fmt.Sprintf("%+v", config)
		for _, ranks := range []int{1, 2, 4} {
			_, peak, err := sketched(build, config, ranks, 0, 4, 128)
			if err != nil {
				t.Fatal(err)
			}
			peaks[name] = append(peaks[name], peak)
		}
		t.Logf("%s: bytes of the values on 1, 2, 4 ranks: %d", name, peaks[name])
	}
	for i, share := range []float64{1, 1. / 2, 1. / 4} {
		if p := peaks[fmt.Sprintf("%+v", TPConfig{})]; float64(p[i]) > (share+0.05)*float64(p[0]) {
			t.Errorf("%d ranks: %d bytes on each, want at most %.2f of %d", 1<<i, p[i], share+0.05, p[0])
		}
	}
}
