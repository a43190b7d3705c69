// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train/proof"
)

// tiedNet has an output layer with the weights of its first layer.
type tiedNet struct {
	First, Last *nn.Linear
}

func (n *tiedNet) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(n.Last, c.Call(n.First, x).Tanh())
}

// tiedTask trains a tiedNet on rows of four numbers.
func tiedTask(g *dist.Group, dropout float64) Task[[]float32] {
	b := &nn.Build{Generator: tensor.NewGenerator(7)}
	m := &tiedNet{First: nn.NewLinear(b, 4, 4), Last: nn.NewLinear(b, 4, 4)}
	m.Last.Weight = m.First.Weight
	return Task[[]float32]{
		Name: "tied", Model: m, Samples: 64,
		Loss: func(c *nn.Ctx, model any, rows []float32) *tensor.Tensor {
			x := tensor.FromFloat32(rows, len(rows)/4, 4)
			y := c.Call(&nn.Dropout{P: dropout}, c.Call(model.(nn.Module), x))
			return tensor.MSE(y, x)
		},
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return optim.NewAdam(params, optim.AdamOptions{LR: 0.01})
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[[]float32], error) {
			order, err := data.NewStream(data.StreamConfig{Len: 64, Total: 8, Rank: g.Rank(), World: g.Size(), Shuffle: true, Seed: 3})
			if err != nil {
				return nil, err
			}
			ds := data.FromFunc(64, func(_ context.Context, k data.Key) ([]float32, error) {
				return []float32{float32(k.Index) / 64, 1, float32(k.Index%7) / 7, -1}, nil
			})
			collate := func(rows [][]float32) (all []float32, err error) {
				for _, row := range rows {
					all = append(all, row...)
				}
				return all, nil
			}
			return data.NewLoader(ctx, ds, order, collate, data.LoaderConfig{}, from)
		},
	}
}

// onRanks runs a function on ranks that are goroutines, and returns what it returned on rank 0.
func onRanks(t *testing.T, n int, f func(ctx context.Context, g *dist.Group) (*Comparison, error)) (c *Comparison, err error) {
	t.Helper()
	err = dist.Spawn(t.Context(), n, func(ctx context.Context, g *dist.Group) error {
		mine, err := f(ctx, g)
		if g.Rank() == 0 {
			c = mine
		}
		return err
	})
	return c, err
}

// TestProveTask: a program proves its checkpoints, the newest one that has a proof. An output
// layer that came back untied is named.
func TestProveTask(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	o := Options{Out: out, Steps: 6, Batch: 8, SaveEvery: 2, Keep: 3}
	prove := func(n int, path string, loaded func(model any)) (*Comparison, error) {
		return onRanks(t, n, func(ctx context.Context, g *dist.Group) (*Comparison, error) {
			if loaded != nil {
				ctx = context.WithValue(ctx, loadedKey{}, loaded)
			}
			return ProveTask(ctx, g, tiedTask(g, 0), o, storage.Dir(path))
		})
	}
	if _, err := prove(1, out, nil); !errors.Is(err, checkpoint.ErrNone) {
		t.Errorf("without a checkpoint: %v", err)
	}
	if _, err := onRanks(t, 2, func(ctx context.Context, g *dist.Group) (*Comparison, error) {
		return nil, Run(ctx, g, tiedTask(g, 0), o, Discard)
	}); err != nil {
		t.Fatal(err)
	}
	for n, exact := range map[int]bool{1: false, 2: true, 4: false} {
		if c, err := prove(n, out, nil); err != nil || c.Err() != nil || c.Exact != exact || c.Step != 4 {
			t.Errorf("%d ranks: %v (%v)", n, c, err)
		}
	}
	if _, err := prove(1, checkpoint.Path(out, 6), nil); !errors.As(err, new(*NoProofError)) || !strings.Contains(err.Error(), "step-00000006 has no proof") {
		t.Errorf("of a checkpoint without a proof: %v", err)
	}

	untie := func(model any) {
		m := model.(*tiedNet)
		w := nn.NewParameter(m.First.Weight.Data().Clone())
		m.Last.Weight = w
	}
	c, err := prove(1, out, untie)
	if err != nil {
		t.Fatal(err)
	}
	want := "loaded weights last.weight: norm"
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "came back untied") {
		t.Errorf("an output layer that came back untied: %v, want %q", err, want)
	}
}

// TestProveRandom: what depends on random numbers is compared on the mesh of the run, and left out
// on another.
func TestProveRandom(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	o := Options{Out: out, Steps: 4, Batch: 8, SaveEvery: 2, Keep: 3}
	if _, err := onRanks(t, 2, func(ctx context.Context, g *dist.Group) (*Comparison, error) {
		return nil, Run(ctx, g, tiedTask(g, 0.5), o, Discard)
	}); err != nil {
		t.Fatal(err)
	}
	for n, exact := range map[int]bool{1: false, 2: true} {
		c, err := onRanks(t, n, func(ctx context.Context, g *dist.Group) (*Comparison, error) {
			return ProveTask(ctx, g, tiedTask(g, 0.5), o, storage.Dir(out))
		})
		if err != nil || c.Err() != nil || c.Exact != exact || (c.LeftOut == "") != exact {
			t.Errorf("%d ranks: %v (%v)", n, c, err)
		}
	}
	// The samples are compared on any mesh.
	if c, err := onRanks(t, 1, func(ctx context.Context, g *dist.Group) (*Comparison, error) {
		task := tiedTask(g, 0.5)
		feed := task.Feed
		task.Feed = func(ctx context.Context, from data.LoaderState) (Feed[[]float32], error) {
			from.Position += 8
			return feed(ctx, from)
		}
		return ProveTask(ctx, g, task, o, storage.Dir(out))
	}); err != nil || len(c.Differences) != 2 || c.Differences[0].Kind != proof.LoaderPlace || c.Differences[1].Kind != proof.SampleIDs {
		t.Errorf("a loader that was moved: %v (%v)", c, err)
	}
}
