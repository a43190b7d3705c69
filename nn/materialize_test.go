// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// modules are one of each kind that has parameters or buffers, and what is written to
// them after they were made.
func modules(b *Build) any {
	row := 2
	m := map[string]any{
		"linear":      NewLinear(b, 5, 3),
		"embedding":   NewEmbedding(b, 7, 4, EmbeddingOptions{PaddingIdx: &row}),
		"bag":         NewEmbeddingBag(b, 7, 4, EmbeddingBagOptions{PaddingIdx: &row}),
		"conv":        NewConv2d(b, 4, 6, [2]int{3, 3}, Conv2dOptions{}),
		"transposed":  NewConvTranspose2d(b, 4, 6, [2]int{3, 3}, Conv2dOptions{}),
		"batchnorm":   NewBatchNorm2d(b, 4, BatchNormOptions{}),
		"groupnorm":   NewGroupNorm(b, 2, 4),
		"instance":    NewInstanceNorm2d(b, 4, true),
		"layernorm":   NewLayerNorm(b, 4),
		"rmsnorm":     NewRMSNorm(b, 4),
		"prelu":       NewPReLU(b, 4),
		"attention":   NewMultiheadAttention(b, 4, 2),
		"lstm":        NewLSTM(b, 3, 4, RNNOptions{NumLayers: 2}),
		"gru cell":    NewGRUCell(b, 3, 4),
		"transformer": NewTransformerEncoder(b, 3, TransformerOptions{Width: 4, NumHeads: 2, Hidden: 5}),
		"decoder":     NewTransformerDecoder(b, 2, TransformerOptions{Width: 4, NumHeads: 2, Hidden: 5}),
	}
	var own [8]*Parameter
	for i := range own {
		own[i] = b.Empty(6, 4)
	}
	InitConstant(own[0], 3)
	InitUniform(b.generator(), own[1], -1, 2)
	InitNormal(b.generator(), own[2], 1, 2)
	InitXavierUniform(b.generator(), own[3], 1)
	InitXavierNormal(b.generator(), own[4], 2)
	InitKaimingUniform(b.generator(), own[5], KaimingOptions{})
	InitKaimingNormal(b.generator(), own[6], KaimingOptions{FanOut: true})
	own[7].SetData(own[1].Data().Clone()) // weights that begin alike
	own[7].Data().Scale(0.25)             // and smaller
	m["own"] = own[:]
	dev := own[0].Data().Device()
	cos, sin := tensor.RoPETable(dev, []float64{1, 0.5}, 0, 6)
	m["tables"] = []*Buffer{{Data: cos}, {Data: sin}, {Data: tensor.On(dev).FromBool([]bool{true, false, true})}, {Data: tensor.Arange(dev, 9)}}
	m["tied"] = []*Parameter{own[2], NewParameter(own[3].Data())}
	return m
}

// TestMaterialize: a model that was built on Meta gets the bits of one that was built on
// the CPU, and the generator is where it is then.
func TestMaterialize(t *testing.T) {
	here, there := &Build{Generator: tensor.NewGenerator(5)}, &Build{Generator: tensor.NewGenerator(5), Device: tensor.Meta}
	want, got := modules(here), modules(there)
	if err := Materialize(got, tensor.CPU()); err != nil {
		t.Fatal(err)
	}
	theirs := StateDict(got)
	for i, s := range StateDict(want) {
		g := theirs[i]
		if g.Name != s.Name || g.Tensor.Name() != s.Tensor.Name() || g.Tensor.Device() != tensor.CPU() ||
			!bytes.Equal(g.Tensor.Buffer().Data, s.Tensor.Buffer().Data) {
			t.Errorf("%s is %v, want %v", s.Name, g.Tensor, s.Tensor)
		}
	}
	if !bytes.Equal(here.Generator.State(), there.Generator.State()) {
		t.Error("the generator goes on elsewhere")
	}
	own, tied := got.(map[string]any)["own"].([]*Parameter), got.(map[string]any)["tied"].([]*Parameter)
	if tied[1].Data() != own[3].Data() {
		t.Error("what was one tensor is two")
	}
	if err := Materialize(got, tensor.CPU()); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// keepsTensor holds a tensor that no walk over the model finds.
type keepsTensor struct {
	Linear *Linear
	table  *tensor.Tensor
}

// TestMaterializeRefuses: a parameter whose values nobody remembers, and a tensor that
// nobody would make, are named, and the model stays what it is.
func TestMaterializeRefuses(t *testing.T) {
	b := &Build{Device: tensor.Meta}
	computed := &keepsTensor{Linear: NewLinear(b, 3, 3)}
	computed.Linear.Weight.SetData(computed.Linear.Weight.Data().Add(b.Full(1, 3, 3).Data()))
	step := NewSequential(NewLinear(b, 3, 3), NewLinear(b, 3, 3))
	step.Layers[1].(*Linear).Bias.Data().MarkWritten()
	hidden := &keepsTensor{Linear: NewLinear(b, 2, 2), table: tensor.Arange(tensor.Meta, 3)}
	for want, model := range map[string]any{
		"linear.weight": computed,
		"1.bias":        step,
		"field table of nn.keepsTensor": map[string]any{
			"deep": hidden,
		},
	} {
		err := Materialize(model, tensor.CPU())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for _, p := range Parameters(model) {
			if p.Data().Device() != tensor.Meta {
				t.Errorf("%s has been made all the same", p.Name())
			}
		}
	}
}
