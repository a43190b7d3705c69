// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// unmade is a model of odd sizes, with tied and frozen weights, some that are written after they
// were drawn, and buffers.
func unmade(dev tensor.Device, seed int64) *tiedToy {
	b := &nn.Build{Generator: tensor.NewGenerator(seed), Device: dev}
	m := &tiedToy{
		Tokens: nn.NewEmbedding(b, numIDs, oddWidth),
		Frozen: nn.NewLinear(b, oddWidth, oddWidth),
		Drop:   &nn.Dropout{},
		Norm:   nn.NewBatchNorm1d(b, oddWidth, nn.BatchNormOptions{}),
		Head:   nn.NewLinear(b, oddWidth, numIDs),
		Spare:  nn.NewLinear(b, 1, 5),
	}
	m.Head.Weight = m.Tokens.Weight
	m.Frozen.Weight.Frozen, m.Frozen.Bias.Frozen = true, true
	m.Tokens.Weight.Data().Scale(0.3)
	m.Tokens.Weight.Data().Select(0, 1).Fill(0)
	nn.InitUniform(b.Generator, m.Spare.Weight, 2, 3)
	return m
}

// TestMaterialize: a model that was sharded on Meta has the values, and trains with the losses, of
// one that was built on the CPU, whatever the number of ranks and the dims that are cut.
func TestMaterialize(t *testing.T) {
	cases := []struct {
		ranks, replicas int
		opts            []FSDPOption
	}{{1, 1, nil}, {2, 1, nil}, {3, 1, nil}, {4, 2, nil}, {4, 1, []FSDPOption{WithPolicy(ByFunc(func(path string, _ any) bool { return path == "head" || path == "spare" }))}}, {13, 1, nil}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d ranks, %d replicas", c.ranks, c.replicas), func(t *testing.T) {
			err := spawn(t, c.ranks, func(ctx context.Context, g *dist.Group) error {
				train := func(dev tensor.Device) (losses []float64, whole map[string][]float32, err error) {
					m := unmade(dev, 7)
					f, err := sharded(ctx, g, m, c.replicas, c.opts...)
					if err != nil {
						return nil, nil, err
					}
					if dev == tensor.Meta {
						in := newBatches(g.Rank(), g.Size(), 4*c.ranks)
						ids, targets := in.next()
						if _, err := backward(ctx, f, ids, targets); err == nil || !strings.Contains(err.Error(), "tokens.weight is on device meta") {
							return nil, nil, fmt.Errorf("a pass before Materialize ended with %v", err)
						}
						if err := f.Materialize(ctx, tensor.CPU()); err != nil {
							return nil, nil, err
						}
					}
					if whole, err = wholeOf(ctx, f, dataOf); err != nil {
						return nil, nil, err
					}
					for _, b := range nn.Buffers(m) {
						whole[b.Name()] = b.Data.To(tensor.Float32).Float32s()
					}
					opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 1e-2})
					in := newBatches(g.Rank(), g.Size(), 4*c.ranks)
					for range 3 {
						opt.ZeroGrad()
						ids, targets := in.next()
						loss, err := backward(ctx, f, ids, targets)
						if err != nil {
							return nil, nil, err
						}
						losses = append(losses, loss)
						opt.Step(nil)
					}
					return losses, whole, nil
				}
				want, values, err := train(tensor.CPU())
				if err != nil {
					return err
				}
				got, made, err := train(tensor.Meta)
				if err != nil {
					return err
				}
				if !slices.Equal(got, want) {
					return fmt.Errorf("rank %d: the losses are %v, of a model built on the CPU %v", g.Rank(), got, want)
				}
				one := nn.StateDict(unmade(tensor.CPU(), 7))
				for _, s := range one {
					if x := s.Tensor.To(tensor.Float32).Float32s(); !slices.Equal(values[s.Name], x) || !slices.Equal(made[s.Name], x) {
						return fmt.Errorf("rank %d: %s has other values than on one rank", g.Rank(), s.Name)
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

// wide is a model with a weight that can be cut along any dim.
func wide(b *nn.Build) nn.Module {
	return nn.NewSequential(nn.NewLinear(b, 64, 48), nn.NewLinear(b, 48, 32))
}

// TestMaterializeAlongDim: shards of another dim than 0.
func TestMaterializeAlongDim(t *testing.T) {
	last := WithShardDim(func(_ string, shape []int) int { return len(shape) - 1 })
	err := spawn(t, 4, func(ctx context.Context, g *dist.Group) error {
		f, err := sharded(ctx, g, wide(&nn.Build{Device: tensor.Meta}), 1, last)
		if err != nil {
			return err
		}
		if err := f.Materialize(ctx, tensor.CPU()); err != nil {
			return err
		}
		for _, p := range nn.Parameters(wide(&nn.Build{})) {
			i := slices.IndexFunc(f.params, func(s *shardParam) bool { return s.name == p.Name() })
			dim := p.Data().NumDims() - 1
			n := p.Data().Dim(dim) / 4
			if want := p.Data().Narrow(dim, g.Rank()*n, n); !slices.Equal(f.params[i].param.Data().Float32s(), want.Float32s()) {
				return fmt.Errorf("rank %d: %s has another shard than on one rank", g.Rank(), p.Name())
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMaterializeMemory: no rank holds more than its shards and what is made at a time.
func TestMaterializeMemory(t *testing.T) {
	const numRanks, width = 4, 1024
	build := func(dev tensor.Device) nn.Module {
		b := &nn.Build{Device: dev}
		return nn.NewSequential(nn.NewLinear(b, width, 2*width), nn.NewLinear(b, 2*width, width), nn.NewLinear(b, width, width))
	}
	whole := 4 * int64(nn.NumParams(build(tensor.Meta)))
	runtime.GC()
	before, _ := tensor.MemoryInUse()
	tensor.ResetMemoryPeak()
	err := spawn(t, numRanks, func(ctx context.Context, g *dist.Group) error {
		m := build(tensor.Meta)
		f, err := sharded(ctx, g, m, 1)
		if err != nil {
			return err
		}
		if err := f.Materialize(ctx, tensor.CPU()); err != nil {
			return err
		}
		return g.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	_, peak := tensor.MemoryInUse()
	// The four ranks are one process: together they hold the model once. Each makes 1 MiB at a time
	// in place; comparing the ranks takes some KiB.
	t.Logf("the model has %d KiB, %d ranks have held %d KiB more than before", whole>>10, numRanks, (peak-before)>>10)
	if most := before + whole + whole/20; peak > most {
		t.Errorf("the ranks have held %d bytes together, want at most the model and 5 %%, %d", peak-before, most-before)
	}
}

// TestMaterializeRefuses: what cannot be made is named on every rank, and the model stays what it
// is.
func TestMaterializeRefuses(t *testing.T) {
	for want, c := range map[string]struct {
		seed func(rank int) int64
		do   func(m *tiedToy)
		dev  tensor.Device
	}{
		"rank 0 has tokens.weight from ": {func(rank int) int64 { return int64(rank / 2) }, func(*tiedToy) {}, tensor.CPU()},
		"has no data: give another one":  {func(int) int64 { return 1 }, func(*tiedToy) {}, tensor.Meta},
		"head.bias": {func(int) int64 { return 1 }, func(m *tiedToy) {
			m.Head.Bias.Data().CopyFrom(m.Head.Bias.Data().Mul(m.Head.Bias.Data()))
		}, tensor.CPU()},
	} {
		err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
			m := unmade(tensor.Meta, c.seed(g.Rank()))
			c.do(m)
			f, err := sharded(ctx, g, m, 1)
			if err != nil {
				return err
			}
			if err := f.Materialize(ctx, c.dev); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("rank %d: %v, want %q", g.Rank(), err, want)
			}
			for _, p := range nn.Parameters(m) {
				if p.Data().Device() != tensor.Meta {
					return fmt.Errorf("rank %d: %s has been made all the same", g.Rank(), p.Name())
				}
			}
			return g.Barrier(ctx)
		})
		if err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
}
