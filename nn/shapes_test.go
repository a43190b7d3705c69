// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// shapesModel has all that a pass for shapes replaces.
type shapesModel struct {
	Embedding *Embedding
	Norm      *BatchNorm
	Drop      *Dropout
	Attention *DotProductAttention
	Extra     *addsLoss
	seen      []tensor.Device
	read      []*tensor.Tensor
}

func (m *shapesModel) Forward(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
	m.seen = append(m.seen, c.Device(), c.Positions(ids.Dim(1)).Device())
	m.read = []*tensor.Tensor{c.Documents(), c.Param(m.Norm.Weight), c.Buffer(m.Norm.RunningVar), ids}
	x := c.Call(m.Drop, c.Call(m.Embedding, ids))
	x = c.CallN(m.Attention, c.CallN(m.Attention, c.CallN(m.Attention, x)[0].Repeat(1, 1, 3))[0].Repeat(1, 1, 3))[0]
	y := c.Call(m.Norm, x.Reshape(-1, x.Dim(-1)))
	return c.Call(m.Extra, y)
}

// TestShapesOnly: the shapes are those of the pass itself, random numbers go on as if they were
// drawn, and nothing else changes.
func TestShapesOnly(t *testing.T) {
	b := &Build{Generator: tensor.NewGenerator(1)}
	m := &shapesModel{
		Embedding: NewEmbedding(b, 10, 12), Norm: NewBatchNorm2d(b, 4, BatchNormOptions{}), Drop: NewDropout(0.5),
		Attention: &DotProductAttention{HeadDim: 2, Causal: true}, Extra: &addsLoss{b.Full(1, 4)},
	}
	ids := tensor.FromInt64([]int64{1, 2, 3, 4, 5, 6}, 2, 3)
	g := tensor.NewGenerator(5)
	c := Training(t.Context(), WithGenerator(g), WithAutocast(tensor.BFloat16)).WithDocuments(tensor.FromInt64([]int64{0, 0, 1, 0, 1, 1}, 2, 3))
	defer c.Close()
	state := g.State()
	want := c.Call(m, ids)
	after := g.State()
	mean := slices.Clone(m.Norm.RunningMean.Data.Float32s())
	added, bytes := c.AddedLoss(), c.Tape().LiveBytes()

	if err := g.SetState(state); err != nil {
		t.Fatal(err)
	}
	c.ShapesOnly(true)
	if !c.IsShapesOnly() {
		t.Error("the pass does not say that it runs for shapes alone")
	}
	got := c.Call(m, tensor.New(tensor.Meta, tensor.Int64, 2, 3))
	c.ShapesOnly(false)
	for i, r := range m.read {
		value, p := c.StandsFor(r)
		want := []*tensor.Tensor{c.Documents(), nil, m.Norm.RunningVar.Data, nil}[i]
		if value != want || (p == m.Norm.Weight) != (i == 1) {
			t.Errorf("value %d stands for %v and parameter %v", i, value, p)
		}
	}
	if got.Device() != tensor.Meta || !slices.Equal(got.Shape(), want.Shape()) || got.DType() != want.DType() || got.NeedsGrad() {
		t.Errorf("the pass for shapes gives %v, want the shape of %v", got, want)
	}
	if !slices.Equal(g.State(), after) {
		t.Error("random numbers do not go on as if they were drawn")
	}
	if !slices.Equal(m.Norm.RunningMean.Data.Float32s(), mean) {
		t.Error("running statistics have moved")
	}
	if c.AddedLoss().Item() != added.Item() || c.Tape().LiveBytes() > bytes+8 {
		t.Error("losses or memory of the pass itself have changed")
	}
	if want := []tensor.Device{tensor.CPU(), tensor.CPU(), tensor.Meta, tensor.Meta}; !slices.Equal(m.seen, want) {
		t.Errorf("devices %v, want %v", m.seen, want)
	}

	// A pass of its own, which records.
	reads := 0
	d := c.ForShapes(func(*Parameter) { reads++ })
	defer d.Close()
	got = d.Call(m, tensor.New(tensor.Meta, tensor.Int64, 2, 3))
	if !got.NeedsGrad() || !slices.Equal(got.Shape(), want.Shape()) || !slices.Equal(g.State(), after) {
		t.Errorf("a pass of its own gives %v, and must leave the generator alone", got)
	}
	if c.IsShapesOnly() || reads != 5 {
		t.Errorf("the pass that it came from runs for shapes: %v, and %d parameters were read, want 5", c.IsShapesOnly(), reads)
	}
}

type stops struct{}

func (*stops) Forward(c *Ctx, x *tensor.Tensor) *tensor.Tensor {
	c.ShapesOnly(true)
	c.Stop()
	return x
}

// TestStop: a pass ends where it is told to, and what fails later is not named by the module that
// ended it.
func TestStop(t *testing.T) {
	c := Training(t.Context())
	defer c.Close()
	var err error
	func() {
		defer c.Recover(&err)
		run := func() { c.Call(NewSequential(&stops{}), tensor.Zeros(2)) }
		if !c.UntilStop(run) || c.UntilStop(func() {}) || c.IsShapesOnly() {
			t.Error("UntilStop does not say whether it was stopped, or the pass still runs for shapes")
		}
		other := Training(t.Context())
		defer other.Close()
		if !c.UntilStop(func() { other.UntilStop(run) }) {
			t.Error("another pass was stopped")
		}
		tensor.Zeros(2).Add(tensor.Zeros(3))
	}()
	if _, named := err.(*ForwardError); named || err == nil {
		t.Errorf("%v, want an error without a module", err)
	}
}

// TestShapesOnlyWithACache: the cache of a pass for shapes alone is as full as that of the pass.
func TestShapesOnlyWithACache(t *testing.T) {
	cache := NewKVCache(8)
	module := &DotProductAttention{}
	cache.Append(module, tensor.Zeros(1, 3, 2, 2), tensor.Zeros(1, 3, 2, 2))
	c := Evaluation(t.Context(), WithKVCache(cache))
	defer c.Close()
	d := c.ForShapes(nil)
	defer d.Close()
	key := tensor.New(tensor.Meta, tensor.Float32, 1, 2, 2, 2)
	keys, _ := d.KVCache().Append(module, key, key)
	if !slices.Equal(keys.Shape(), []int{1, 5, 2, 2}) || d.KVCache().Len() != 5 || cache.Len() != 3 {
		t.Errorf("keys %v; the caches hold %d and %d, want 5 and 3", keys.Shape(), d.KVCache().Len(), cache.Len())
	}
	// A module that runs for shapes in a pass of its own right counts as well.
	cache.Append(&DotProductAttention{}, key, key)
	if cache.Len() != 2 {
		t.Errorf("the cache holds %d, want 2", cache.Len())
	}
}
