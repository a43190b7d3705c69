// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// TestActivationModules: each applies the function of its name, with PyTorch's
// settings.
func TestActivationModules(t *testing.T) {
	x := tensor.FromFloat32([]float32{-4, -1, 0.5, 2, 30, 7}, 2, 3)
	for _, c := range []struct {
		module Module
		want   *tensor.Tensor
	}{
		{&Sigmoid{}, x.Sigmoid()},
		{&Tanh{}, x.Tanh()},
		{&SiLU{}, x.SiLU()},
		{&LogSigmoid{}, x.LogSigmoid()},
		{NewLeakyReLU(), x.LeakyReLU(0.01)},
		{NewELU(), x.ELU(1)},
		{&SELU{}, x.SELU()},
		{NewSoftplus(), x.Softplus(1, 20)},
		{NewHardtanh(), x.Clamp(-1, 1)},
		{&ReLU6{}, x.Clamp(0, 6)},
		{&Hardsigmoid{}, x.Hardsigmoid()},
		{&Hardswish{}, x.Hardswish()},
		{&Mish{}, x.Mish()},
		{NewPReLU(&Build{}, 3), x.LeakyReLU(0.25)},
		{&Softmax{Dim: 0}, x.Softmax(0)},
		{&LogSoftmax{Dim: -1}, x.LogSoftmax(1)},
		{&Identity{}, x},
		{NewDropout(0.5), x},
	} {
		ctx := Evaluation(t.Context())
		if got := ctx.Call(c.module, x); !slices.Equal(got.Float32s(), c.want.Float32s()) {
			t.Errorf("%T gives %v, want %v", c.module, got, c.want)
		}
		ctx.Close()
	}
}

func TestDropoutInTraining(t *testing.T) {
	x := tensor.Full(1, 1000)
	ctx := Training(t.Context(), WithGenerator(tensor.NewGenerator(2)))
	defer ctx.Close()
	if got := ctx.Call(NewDropout(0.25), x).EqScalar(0).Sum().Item(); got < 180 || got > 320 {
		t.Errorf("%v of 1000 elements are dropped, want about 250", got)
	}
	step := func(parent context.Context) (err error) {
		c := Training(parent)
		defer c.Close()
		defer c.Recover(&err)
		c.Call(NewSequential(NewDropout(0.25)), x)
		return nil
	}
	err := step(t.Context())
	var fe *ForwardError
	if !errors.As(err, &fe) || fe.Module != "0" || !strings.Contains(err.Error(), "nn.WithGenerator") {
		t.Errorf("without a generator the pass ends with %v", err)
	}
}

// TestLossModules: each is the function of its name with its settings.
func TestLossModules(t *testing.T) {
	c := Evaluation(t.Context())
	defer c.Close()
	x := tensor.FromFloat32([]float32{0.1, 0.7, 0.2, 0.4, 0.3, 0.3}, 2, 3)
	y := tensor.FromFloat32([]float32{1, 0, 0.5, 0.2, 1, 0}, 2, 3)
	ids := tensor.FromInt64([]int64{2, 0})
	sides := tensor.FromFloat32([]float32{1, -1})
	weight := &Buffer{Data: tensor.FromFloat32([]float32{1, 2, 3})}
	sum := tensor.LossOptions{Reduction: tensor.ReduceSum}
	for _, l := range []struct {
		name      string
		got, want *tensor.Tensor
	}{
		{"CrossEntropyLoss", (&CrossEntropyLoss{}).Forward(c, x, ids), tensor.CrossEntropy(x, ids)},
		{
			"CrossEntropyLoss with options", (&CrossEntropyLoss{Weight: weight, LabelSmoothing: 0.1}).Forward(c, x, ids),
			tensor.CrossEntropy(x, ids, tensor.CrossEntropyOptions{Weight: weight.Data, LabelSmoothing: 0.1}),
		},
		{
			"NLLLoss", (&NLLLoss{IgnoreIndex: new(int64(2))}).Forward(c, x, ids),
			tensor.NLL(x, ids, tensor.CrossEntropyOptions{IgnoreIndex: new(int64(2))}),
		},
		{
			"BCEWithLogitsLoss", (&BCEWithLogitsLoss{PosWeight: weight}).Forward(c, x, y),
			tensor.BCEWithLogits(x, y, tensor.BCEWithLogitsOptions{PosWeight: weight.Data}),
		},
		{"BCELoss", (&BCELoss{}).Forward(c, x, y), tensor.BCE(x, y)},
		{"KLDivLoss", (&KLDivLoss{LogTarget: true}).Forward(c, x, y), tensor.KLDiv(x, y, tensor.KLDivOptions{LogTarget: true})},
		{"MSELoss", (&MSELoss{Reduction: tensor.ReduceSum}).Forward(c, x, y), tensor.MSE(x, y, sum)},
		{"L1Loss", (&L1Loss{}).Forward(c, x, y), tensor.L1(x, y)},
		{"SmoothL1Loss", (&SmoothL1Loss{}).Forward(c, x, y), tensor.SmoothL1(x, y, 1)},
		{"HuberLoss", (&HuberLoss{Delta: 0.2}).Forward(c, x, y), tensor.Huber(x, y, 0.2)},
		{"CosineEmbeddingLoss", (&CosineEmbeddingLoss{Margin: 0.1}).Forward(c, x, y, sides), tensor.CosineEmbedding(x, y, sides, 0.1)},
		{"MarginRankingLoss", (&MarginRankingLoss{Margin: 2}).Forward(c, x, y, y), tensor.MarginRanking(x, y, y, 2)},
		{"TripletMarginLoss", (&TripletMarginLoss{}).Forward(c, x, y, x.Square()), tensor.TripletMargin(x, y, x.Square(), 1)},
	} {
		if l.got.Item() != l.want.Item() {
			t.Errorf("%s is %v, want %v", l.name, l.got, l.want)
		}
	}
}
