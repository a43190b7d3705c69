// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// threadGroups returns devices of one thread, the first of which is the CPU.
func threadGroups(n int) []tensor.Device { return allGroups()[:n] }

var allGroups = sync.OnceValue(func() []tensor.Device {
	groups := []tensor.Device{tensor.CPU()}
	for i := 1; i < 8; i++ {
		g, err := tensor.NewThreadGroup(fmt.Sprintf("cpu:%d", i), 1)
		if err != nil {
			panic(err)
		}
		groups = append(groups, g)
	}
	return groups
})

// branched has two inputs, of which the second is optional, two results and a loss of its own.
type branched struct {
	In   *nn.Linear
	Drop *nn.Dropout
	Out  *nn.Linear
}

func newBranched(seed int64) *branched {
	b := &nn.Build{Generator: tensor.NewGenerator(seed)}
	return &branched{nn.NewLinear(b, 6, 8), &nn.Dropout{}, nn.NewLinear(b, 8, 3)}
}

func (m *branched) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	h := c.Call(m.Drop, c.Call(m.In, x[0]).Tanh())
	if x[1] != nil {
		h = h.Mul(x[1])
	}
	y := c.Call(m.Out, h)
	c.AddLoss(h.Square().Mean())
	return []*tensor.Tensor{y, h.Detach().Mean(), h.Square().Sum(1)}
}

// branchedPass runs forward and backward, with gradients of the input.
func branchedPass(t *testing.T, m *branched, run any, n int, scale *tensor.Tensor) (grads map[string][]float32, input []float32, out [][]float32) {
	t.Helper()
	for _, p := range nn.Parameters(m) {
		p.ZeroGrad()
	}
	c := nn.Training(t.Context(), nn.WithGenerator(tensor.NewGenerator(3)))
	defer c.Close()
	data := tensor.New(tensor.CPU(), tensor.Float32, n, 6)
	tensor.NewGenerator(9).Normal(data, 0, 1)
	x := c.Leaf(data)
	x.OnGrad(func(g *tensor.Tensor) *tensor.Tensor {
		input = g.Untracked().Float32s()
		return nil
	})
	var err error
	func() {
		defer c.Recover(&err)
		y := c.CallN(run.(nn.ModuleN), x, scale)
		for _, r := range y {
			out = append(out, r.Untracked().Float32s())
		}
		loss := y[0].Square().Mean().Add(y[2].Mean()).Add(c.AddedLoss())
		err = loss.Backward(t.Context())
	}()
	if err != nil {
		t.Fatal(err)
	}
	return gradients(m), input, out
}

// TestDataParallelEqualsOne: replicas give the results and gradients of the model alone, also of
// inputs, with several results, one of no dims, an optional input, and a loss that a module adds.
func TestDataParallelEqualsOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ samples, devices, chunks int }{{8, 2, 2}, {7, 3, 3}, {5, 4, 3}, {2, 4, 2}, {1, 3, 1}, {9, 8, 5}} {
		for _, scale := range []*tensor.Tensor{nil, tensor.Full(0.5)} {
			m := newBranched(1)
			m.Drop.P = 0
			want, wantInput, wantOut := branchedPass(t, m, m, c.samples, scale)
			d, err := NewDataParallel(m, threadGroups(c.devices))
			if err != nil {
				t.Fatal(err)
			}
			got, input, out := branchedPass(t, m, d, c.samples, scale)
			if off, at := difference(t, got, want); off > 1e-5 {
				t.Errorf("%+v: the gradient of %s is off by %g", c, at, off)
			}
			if off, _ := difference(t, map[string][]float32{"x": input, "y": out[0], "s": out[2]}, map[string][]float32{"x": wantInput, "y": wantOut[0], "s": wantOut[2]}); off > 1e-5 {
				t.Errorf("%+v: the gradient of the input, or a result, is off by %g", c, off)
			}
			if len(out[1]) != c.chunks {
				t.Errorf("%+v: %d means of replicas", c, len(out[1]))
			}
		}
	}
}

// TestDataParallelModels: the models of package models run on other devices than the first, with
// activation checkpointing, in bfloat16, and without gradients.
func TestDataParallelModels(t *testing.T) {
	t.Parallel()
	b := func() *nn.Build { return &nn.Build{Generator: tensor.NewGenerator(1)} }
	const n, time, vocab = 4, 6, 17
	ids := make([]int64, n*time)
	for i := range ids {
		ids[i] = int64(i*7) % vocab
	}
	tokens := tensor.FromInt64(ids, n, time)
	images := tensor.New(tensor.CPU(), tensor.Float32, n, 3, 32, 32)
	tensor.NewGenerator(5).Normal(images, 0, 1)
	for name, of := range map[string]struct {
		model nn.Module
		x     *tensor.Tensor
	}{
		"gpt":    {models.NewGPT(b(), models.GPTConfig{Vocab: vocab, Context: time, Width: 24, Heads: 4, Layers: 2}), tokens},
		"llama":  {models.NewLlama(b(), models.LlamaConfig{Vocab: vocab, Context: time, Width: 24, Hidden: 33, Heads: 4, KeyHeads: 2, Layers: 2}), tokens},
		"resnet": {models.NewResNet(b(), models.ResNetConfig{Blocks: [4]int{1, 1, 1, 1}, Classes: 5, SmallImages: true}), images},
	} {
		d, err := NewDataParallel(of.model, threadGroups(2))
		if err != nil {
			t.Fatal(err)
		}
		pass := func(m nn.Module, training bool, opts ...nn.CtxOption) (map[string][]float32, []float32) {
			for _, p := range nn.Parameters(of.model) {
				p.ZeroGrad()
			}
			c := nn.Evaluation(t.Context(), opts...)
			if training {
				c = nn.Training(t.Context(), opts...)
			}
			defer c.Close()
			in := c.With(nn.Recompute(func(m any) bool { _, is := m.(*nn.LayerNorm); return is }))
			var err error
			var out []float32
			func() {
				defer c.Recover(&err)
				y := in.Call(m, of.x)
				out = y.Untracked().To(tensor.Float32).Float32s()
				if training {
					err = y.To(tensor.Float32).Square().Mean().Backward(t.Context())
				}
			}()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return gradients(of.model), out
		}
		within := func(what string, got, want []float32, limit float64) {
			if off, _ := difference(t, map[string][]float32{"": got}, map[string][]float32{"": want}); off > limit {
				t.Errorf("%s, %s: off by %g", name, what, off)
			}
		}
		_, plain := pass(of.model, false)
		_, out := pass(d, false)
		within("evaluation", out, plain, 1e-5)
		if name == "resnet" { // whose batch norms see the samples of a replica
			if grads, _ := pass(d, true); len(grads) != len(nn.Parameters(of.model)) {
				t.Errorf("resnet: %d gradients", len(grads))
			}
			continue
		}
		for dtype, limit := range map[tensor.DType]float64{0: 1e-4, tensor.BFloat16: 0.05} {
			want, plain := pass(of.model, true, nn.WithAutocast(dtype))
			got, out := pass(d, true, nn.WithAutocast(dtype))
			within(fmt.Sprint("results in ", dtype), out, plain, limit)
			if off, at := difference(t, got, want); off > limit {
				t.Errorf("%s in %v: the gradient of %s is off by %g", name, dtype, at, off)
			}
		}
	}
}

// TestDataParallelBuffers: the running statistics are those of the first replica's samples, and
// random numbers are the same each time, and others in each replica.
func TestDataParallelBuffers(t *testing.T) {
	t.Parallel()
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	m := nn.NewSequential(nn.NewBatchNorm1d(b, 3, nn.BatchNormOptions{}), &nn.Dropout{P: 0.5})
	x := tensor.New(tensor.CPU(), tensor.Float32, 8, 3)
	tensor.NewGenerator(4).Normal(x, 1, 2)
	run := func(module nn.Module, x *tensor.Tensor) []float32 {
		c := nn.Training(t.Context(), nn.WithGenerator(tensor.NewGenerator(2)))
		defer c.Close()
		return c.Call(module, x).Untracked().Float32s()
	}
	norm := m.Layers[0].(*nn.BatchNorm1d)
	mean := func() []float32 { return norm.RunningMean.Data.Float32s() }
	run(m, x.Narrow(0, 0, 4))
	want := mean()
	norm.RunningMean.Data.Fill(0)
	norm.RunningVar.Data.Fill(1)
	norm.NumBatchesTracked.Data.Fill(0)
	d, err := NewDataParallel(m, threadGroups(2))
	if err != nil {
		t.Fatal(err)
	}
	first := run(d, x)
	if got := mean(); !slices.Equal(got, want) || norm.NumBatchesTracked.Data.Int64s()[0] != 1 {
		t.Errorf("the running mean is %v after %v batches, want %v, of the first replica alone", got, norm.NumBatchesTracked.Data.Int64s(), want)
	}
	if second := run(d, x); !slices.Equal(first, second) {
		t.Errorf("the same generator gave %v and %v", first, second)
	}
	zeros := func(y []float32) (at []int) {
		for i, v := range y {
			if v == 0 {
				at = append(at, i)
			}
		}
		return at
	}
	if a, b := zeros(first[:12]), zeros(first[12:]); slices.Equal(a, b) {
		t.Errorf("both replicas drop the elements %v", a)
	}
}

// TestDataParallelOnce: what replicas cannot do in a backward pass is an error that says so, and not a
// gradient that lacks something.
func TestDataParallelOnce(t *testing.T) {
	t.Parallel()
	for want, body := range map[string]func(y *tensor.Tensor) error{
		"the backward passes of replicas are not recorded": func(y *tensor.Tensor) error { return y.Sum().Backward(t.Context(), tensor.CreateGraph()) },
		"the replicas are gone after the first one": func(y *tensor.Tensor) error {
			if err := y.Sum().Backward(t.Context(), tensor.RetainGraph()); err != nil {
				return fmt.Errorf("the first pass: %w", err)
			}
			return y.Square().Sum().Backward(t.Context())
		},
	} {
		m := newBranched(1)
		d, err := NewDataParallel(m.In, threadGroups(2))
		if err != nil {
			t.Fatal(err)
		}
		func() {
			c := nn.Training(t.Context())
			defer c.Close()
			var failed error
			defer func() {
				if failed == nil || !strings.Contains(failed.Error(), want) {
					t.Errorf("%v, want %q", failed, want)
				}
			}()
			defer c.Recover(&failed)
			failed = body(c.Call(d, tensor.Full(1, 4, 6)))
		}()
	}
}

// refusing fails on the samples whose first element is negative.
type refusing struct{ W *nn.Parameter }

var errRefusing = errors.New("a negative sample")

func (f *refusing) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	if x.Narrow(0, 0, 1).ToDevice(tensor.CPU()).Float32s()[0] < 0 {
		c.Fail(errRefusing)
	}
	return x.Mul(c.Param(f.W))
}

// TestDataParallelRefuses: what cannot be run is refused by name, and an error of a replica names
// the replica and its device.
func TestDataParallelRefuses(t *testing.T) {
	t.Parallel()
	cpu, groups := tensor.CPU(), threadGroups(3)
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	linear := nn.NewLinear(b, 2, 2)
	for want, c := range map[string]struct {
		model   any
		devices []tensor.Device
	}{
		"there are no devices":                                   {linear, nil},
		"devices 0 and 2 are the same, cpu":                      {linear, []tensor.Device{cpu, groups[1], cpu}},
		"device 1 is nil":                                        {linear, []tensor.Device{cpu, nil}},
		"device 1 is meta, which computes":                       {linear, []tensor.Device{cpu, tensor.Meta}},
		"weight is on device cpu, and the first device is cpu:1": {linear, []tensor.Device{groups[1], cpu}},
		"weight is sparse":                                       {nn.NewEmbedding(b, 3, 2, nn.EmbeddingOptions{Sparse: true}), groups},
		"the model has a *parallel.Single":                       {&Single{Model: linear}, groups},
		"which replicas cannot do at the same time":              {nn.NewMoE(b, 4, 4, 2, 1, nn.MoEOptions{BiasStep: 0.1}), groups},
	} {
		if _, err := NewDataParallel(c.model, c.devices); err == nil || !strings.HasPrefix(err.Error(), "data parallel: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	run := func(model any, x ...*tensor.Tensor) (err error) {
		d, err := NewDataParallel(model, groups[:2])
		if err != nil {
			return err
		}
		c := nn.Training(t.Context())
		defer c.Close()
		defer c.Recover(&err)
		if len(x) > 1 {
			c.CallN(d, x...)
		} else {
			c.Call(d, x[0])
		}
		return nil
	}
	if err := run(&refusing{b.Full(1, 1)}, tensor.FromFloat32([]float32{1, 1, -1, 1}, 4, 1)); !errors.Is(err, errRefusing) || !strings.Contains(err.Error(), "replica 1 on device cpu:1") {
		t.Errorf("a failing replica: %v", err)
	}
	if err := run(newBranched(1), tensor.Zeros(4, 6), tensor.Zeros(3, 8)); err == nil || !strings.Contains(err.Error(), "input 1 has 3 samples along dim 0, and input 0 has 4") {
		t.Errorf("inputs of unequal sizes: %v", err)
	}
	if err := run(linear, tensor.Zeros(4, 3)); err == nil || !strings.Contains(err.Error(), "replica 0 on device cpu: ") {
		t.Errorf("an input of another width: %v", err)
	}
}

// meanOf has one result of no dims.
type meanOf struct{}

func (meanOf) Forward(_ *nn.Ctx, x *tensor.Tensor) *tensor.Tensor { return x.Mean() }

// TestDataParallelShapes: results of no dims are a vector with few samples too, of one chunk.
func TestDataParallelShapes(t *testing.T) {
	t.Parallel()
	d, err := NewDataParallel(meanOf{}, threadGroups(2))
	if err != nil {
		t.Fatal(err)
	}
	for samples := 1; samples <= 3; samples++ {
		c := nn.Evaluation(t.Context())
		if got := c.Call(d, tensor.Zeros(samples, 2).ToDevice(d.devices[0])).Shape(); !slices.Equal(got, []int{min(samples, 2)}) {
			t.Errorf("%d samples on 2 devices: a result of shape %v", samples, got)
		}
		c.Close()
	}
}
