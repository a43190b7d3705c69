// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// tiedToy is a toy of odd sizes whose embedding is its output layer too, and which has a frozen
// layer, one that is not used, dropout, and a batch norm with its buffers.
type tiedToy struct {
	Tokens *nn.Embedding
	Frozen *nn.Linear
	Drop   *nn.Dropout
	Norm   *nn.BatchNorm1d
	Head   *nn.Linear
	Spare  *nn.Linear
}

const oddWidth = 13

func newTiedToy() *tiedToy {
	b := &nn.Build{Generator: tensor.NewGenerator(3)}
	m := &tiedToy{
		Tokens: nn.NewEmbedding(b, numIDs, oddWidth),
		Frozen: nn.NewLinear(b, oddWidth, oddWidth),
		Drop:   &nn.Dropout{P: 0.1},
		Norm:   nn.NewBatchNorm1d(b, oddWidth, nn.BatchNormOptions{}),
		Head:   nn.NewLinear(b, oddWidth, numIDs),
		Spare:  nn.NewLinear(b, 1, 5),
	}
	m.Head.Weight = m.Tokens.Weight
	m.Frozen.Weight.Frozen, m.Frozen.Bias.Frozen = true, true
	return m
}

func (m *tiedToy) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	x := c.Call(m.Drop, c.Call(m.Frozen, c.Call(m.Tokens, ids)))
	return c.Call(m.Head, c.Call(m.Norm, x))
}

// measuredState returns what the tensors of a rank's state hold.
func measuredState(model any, o optim.Optimizer) int64 {
	sum := int64(0)
	for _, p := range nn.Parameters(model) {
		sum += sizeOf(p.Data().Shape(), p.Data().DType())
		if !p.Frozen {
			buf, _ := p.GradBuffer()
			sum += sizeOf(buf.Shape(), buf.DType())
		}
	}
	for _, s := range o.State() {
		sum += sizeOf(s.Tensor.Shape(), s.Tensor.DType())
	}
	return sum
}

// lossOn returns the loss of a step on a batch: on the device of the pass.
func lossOn(ids, targets *tensor.Tensor) func(c *nn.Ctx, model any) *tensor.Tensor {
	return func(c *nn.Ctx, model any) *tensor.Tensor {
		return tensor.CrossEntropy(c.Call(model.(nn.Module), ids.ToDevice(c.Device())), targets.ToDevice(c.Device()))
	}
}

// predictable are the models of the tests, with their strategies.
var predictable = map[string]func() nn.Module{
	"toy":  func() nn.Module { return newToy(1, width) },
	"tied": func() nn.Module { return newTiedToy() },
}

// predictedStrategies spread a model over all ranks of a group, whose number they name.
var predictedStrategies = map[string]struct {
	numRanks []int
	spread   func(ctx context.Context, model any, g *dist.Group) (Strategy, error)
}{
	"ddp": {[]int{1, 2, 3, 4}, func(ctx context.Context, model any, g *dist.Group) (Strategy, error) {
		return NewDDP(ctx, model, g, small)
	}},
	"ddp, bf16": {[]int{1, 2, 3, 4}, func(ctx context.Context, model any, g *dist.Group) (Strategy, error) {
		return NewDDP(ctx, model, g, small, WithHook(BF16Hook()))
	}},
	"fsdp":         {[]int{1, 2, 3, 4, 64}, fullyShardOver([]mesh.Axis{{Name: shardAxis}})},
	"fsdp, kept":   {[]int{3}, fullyShardOver([]mesh.Axis{{Name: shardAxis}}, WithReshard(Never))},
	"fsdp, groups": {[]int{4, 6}, fullyShardOver([]mesh.Axis{{Name: shardAxis}}, WithReshard(WithinGroupsOf(2)))},
	"fsdp, units": {[]int{2, 4}, fullyShardOver([]mesh.Axis{{Name: shardAxis}}, WithPolicy(ByFunc(func(path string, _ any) bool {
		return path == "Hidden.0" || path == "Hidden.2" || path == "Norm" || path == "Frozen"
	})))},
	"hsdp": {[]int{2, 4}, fullyShardOver([]mesh.Axis{{Name: replicateAxis, Size: 2}, {Name: shardAxis}})},
}

func fullyShardOver(axes []mesh.Axis, opts ...FSDPOption) func(ctx context.Context, model any, g *dist.Group) (Strategy, error) {
	return func(ctx context.Context, model any, g *dist.Group) (Strategy, error) {
		m, err := mesh.New(ctx, g, axes...)
		if err != nil {
			return nil, err
		}
		return FullyShard(ctx, model, m, opts...)
	}
}

// TestPrediction: what was predicted is what a step takes: the bytes that the transport counts,
// the state that the tensors hold, and the most that the values of the passes hold, each to the
// byte.
func TestPrediction(t *testing.T) {
	for strategy, how := range predictedStrategies {
		for name, newModel := range predictable {
			for _, numRanks := range how.numRanks {
				t.Run(fmt.Sprintf("%s/%s/%d", strategy, name, numRanks), func(t *testing.T) {
					err := dist.Spawn(t.Context(), numRanks, func(ctx context.Context, g *dist.Group) error {
						model := newModel()
						s, err := how.spread(ctx, model, g)
						if err != nil {
							return err
						}
						var trained []*nn.Parameter
						for _, p := range nn.Parameters(model) {
							if !p.Frozen {
								trained = append(trained, p)
							}
						}
						return comparePrediction(ctx, g, s, model, optim.NewAdamW(trained, optim.AdamWOptions{}))
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// comparePrediction runs steps and compares them with what was predicted.
func comparePrediction(ctx context.Context, g *dist.Group, s Strategy, model nn.Module, opt optim.Optimizer) error {
	in := newBatches(g.Rank(), g.Size(), 8)
	ids, targets := in.next()
	before := snapshot(model)
	want := Predict(ctx, s, PredictOptions{Optimizer: opt, Loss: lossOn(ids, targets)})
	if want.NoPeak != nil || want.NoSent != nil {
		return fmt.Errorf("not predicted: %v, %v", want.NoPeak, want.NoSent)
	}
	if !slices.Equal(before, snapshot(model)) {
		return fmt.Errorf("the prediction has changed the model")
	}
	passes := want.PeakBytes - want.StateBytes - bufferBytes(model) - s.(forecaster).forecast().extra
	_, sharded := s.(*FSDP)
	for step := range 3 {
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		start := g.Traffic()
		opt.ZeroGrad()
		c := nn.Training(ctx, nn.WithGenerator(tensor.NewGenerator(1)))
		l := lossOn(ids, targets)(c, s)
		if err := l.Backward(ctx); err != nil {
			return err
		}
		peak := c.Tape().PeakBytes()
		c.Close()
		opt.Step(nil)
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		sent := g.Traffic().Since(start).SentBytes
		if state := measuredState(model, opt); state != want.StateBytes {
			return fmt.Errorf("the state has %d bytes, predicted were %d", state, want.StateBytes)
		}
		if sharded && step == 0 {
			continue // in which the order of the units is learned
		}
		if sent != want.SentBytes || sent == 0 && g.Size() > 1 {
			return fmt.Errorf("%d bytes were sent, predicted were %d", sent, want.SentBytes)
		}
		// The memory of full values is not on the tape: package bench compares the whole.
		if !sharded && peak != passes {
			return fmt.Errorf("the values of the passes have held %d bytes, predicted were %d", peak, passes)
		}
	}
	return nil
}

// snapshot returns the values of a model's parameters and buffers.
func snapshot(model any) []float32 {
	var all []float32
	for _, s := range nn.StateDict(model) {
		all = append(all, s.Tensor.To(tensor.Float32).Float32s()...)
	}
	return all
}

// readsValues is a model that no pass without data goes through.
type readsValues struct{ Head *nn.Linear }

func (m *readsValues) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	y := c.Call(m.Head, x)
	return y.MulScalar(y.Sum().Item())
}

// TestUnpredictable: where a number cannot be predicted, the prediction says why, and has the
// others.
func TestUnpredictable(t *testing.T) {
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		m := &readsValues{nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(1)}, 4, 2)}
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		x := tensor.Zeros(3, 4)
		p := Predict(ctx, ddp, PredictOptions{Loss: func(c *nn.Ctx, model any) *tensor.Tensor {
			return c.Call(model.(nn.Module), x.ToDevice(c.Device())).Sum()
		}})
		if p.NoPeak == nil || !strings.Contains(p.NoPeak.Error(), "cannot be run on device meta") || p.PeakBytes != 0 {
			return fmt.Errorf("a model that reads a value has the peak %d, and no error but %v", p.PeakBytes, p.NoPeak)
		}
		if p.StateBytes != 2*4*(4*2+2) || p.SentBytes != 4*(4*2+2+2) {
			return fmt.Errorf("predicted is %+v", p)
		}
		table := nn.NewEmbedding(&nn.Build{Generator: tensor.NewGenerator(1)}, 10, 4)
		table.Weight.Sparse = true
		if ddp, err = NewDDP(ctx, table, g); err != nil {
			return err
		}
		if p := Predict(ctx, ddp, PredictOptions{}); p.NoSent == nil || !strings.Contains(p.NoSent.Error(), "weight is sparse") {
			return fmt.Errorf("a sparse parameter is predicted as %+v", p)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
