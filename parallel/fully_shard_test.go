// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// sharded wraps a model over all ranks of a group: in replicas copies of it.
func sharded(ctx context.Context, g *dist.Group, model any, replicas int, opts ...FSDPOption) (*FSDP, error) {
	axes := []mesh.Axis{{Name: "fsdp"}}
	if replicas > 1 {
		axes = []mesh.Axis{{Name: "replicate", Size: replicas}, {Name: "fsdp"}}
	}
	m, err := mesh.New(ctx, g, axes...)
	if err != nil {
		return nil, err
	}
	return FullyShard(ctx, model, m, opts...)
}

// wholeOf returns the full values of tensors that lie as the parameters do.
func wholeOf(ctx context.Context, f *FSDP, of func(p *nn.Parameter) *tensor.Tensor) (map[string][]float32, error) {
	out := map[string][]float32{}
	for _, p := range nn.Parameters(f.Model) {
		t := of(p)
		if t == nil {
			continue
		}
		s := f.paramOf[p]
		if s == nil {
			out[p.Name()] = t.Float32s()
			continue
		}
		chunk := tensor.New(tensor.CPU(), s.dtype, s.chunkShape...)
		s.local(chunk).CopyFrom(t)
		parts := make([]*tensor.Tensor, f.shards.Size())
		for i := range parts {
			parts[i] = tensor.New(tensor.CPU(), s.dtype, s.chunkShape...)
		}
		if err := f.shards.AllGatherList(ctx, parts, chunk); err != nil {
			return nil, err
		}
		out[p.Name()] = tensor.Cat(s.dim, parts...).Narrow(s.dim, 0, s.shape[s.dim]).Float32s()
	}
	return out, nil
}

func dataOf(p *nn.Parameter) *tensor.Tensor { return p.Data() }
func gradOf(p *nn.Parameter) *tensor.Tensor { return p.Grad() }

// trainSharded runs steps and returns the losses, and after the last step the gradients and the
// parameters.
func trainSharded(ctx context.Context, g *dist.Group, wrap func(m *toy) (Strategy, error), optimizer string, numSteps int) (losses []float64, s Strategy, err error) {
	m := newToy(int64(g.Rank()), width)
	if s, err = wrap(m); err != nil {
		return nil, nil, err
	}
	opt := optimizers[optimizer](nn.Parameters(m))
	in := newBatches(g.Rank(), g.Size(), 8)
	for range numSteps {
		opt.ZeroGrad()
		ids, targets := in.next()
		loss, err := backward(ctx, s, ids, targets)
		if err != nil {
			return nil, nil, err
		}
		losses = append(losses, loss)
		opt.Step(nil)
	}
	return losses, s, nil
}

// TestShardedIsReplicated: FSDP over a flat group has the bits of DDP.
func TestShardedIsReplicated(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		for _, optimizer := range []string{"sgd", "adamw"} {
			t.Run(fmt.Sprint(optimizer, n), func(t *testing.T) {
				err := spawn(t, n, func(ctx context.Context, g *dist.Group) error {
					want, d, err := trainSharded(ctx, g, func(m *toy) (Strategy, error) { return NewDDP(ctx, m, g, small) }, optimizer, 10)
					if err != nil {
						return err
					}
					got, s, err := trainSharded(ctx, g, func(m *toy) (Strategy, error) { return sharded(ctx, g, m, 1) }, optimizer, 10)
					if err != nil {
						return err
					}
					f := s.(*FSDP)
					for i := range want {
						if got[i] != want[i] {
							return fmt.Errorf("rank %d, step %d: the loss is %v, of DDP %v", g.Rank(), i, got[i], want[i])
						}
					}
					for i, of := range []func(*nn.Parameter) *tensor.Tensor{gradOf, dataOf} {
						whole, err := wholeOf(ctx, f, of)
						if err != nil {
							return err
						}
						for _, p := range nn.Parameters(d.(*DDP).Model) {
							if !sameBits(map[string][]float32{"": of(p).Float32s()}, map[string][]float32{"": whole[p.Name()]}) {
								return fmt.Errorf("rank %d: the %s of %s has other bits than DDP's", g.Rank(), []string{"gradient", "value"}[i], p.Name())
							}
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
