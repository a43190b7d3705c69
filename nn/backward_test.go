// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"errors"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

func TestBackward(t *testing.T) {
	layer := nn.NewLinear(&nn.Build{}, 2, 1)
	layer.Weight.Data().WithFloat32s(func(w []float32) { w[0], w[1] = 2, 3 })
	layer.Bias.Data().WithFloat32s(func(b []float32) { b[0] = 1 })
	x := tensor.FromFloat32([]float32{5, 7}, 1, 2)
	var inside *tensor.Tensor
	loss, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
		if !c.Training() {
			t.Error("the pass is not one of training")
		}
		inside = c.Call(layer, x)
		return inside.Mul(inside).Sum()
	})
	if err != nil {
		t.Fatal(err)
	}
	if loss != 32*32 {
		t.Errorf("the loss is %v, want 1024", loss)
	}
	if got := layer.Weight.Grad().Float32s(); got[0] != 64*5 || got[1] != 64*7 {
		t.Errorf("the gradient of the weight is %v, want [320 448]", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a value of the pass can be read after it")
		}
	}()
	inside.Float32s()
}

func TestBackwardFails(t *testing.T) {
	model := nn.NewSequential(nn.NewLinear(&nn.Build{}, 2, 3), nn.NewLinear(&nn.Build{}, 4, 1))
	_, err := nn.Backward(t.Context(), func(c *nn.Ctx) *tensor.Tensor {
		return c.Call(model, tensor.Zeros(1, 2)).Sum()
	})
	var where *nn.ForwardError
	if !errors.As(err, &where) || where.Module != "1" {
		t.Errorf("the error is %v, want one of module 1", err)
	}
}

func TestAccuracy(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		logits  []float32
		targets []int64
		want    float64
	}{
		{"three of four", []float32{1, 2, 4, 3, 0, 1, 1, 0}, []int64{1, 0, 0, 0}, 0.75},
		{"a skipped row", []float32{1, 2, 4, 3}, []int64{tensor.IgnoreIndex, 0}, 1},
		{"only skipped rows", []float32{1, 2}, []int64{tensor.IgnoreIndex}, 0},
		{"a tie goes to the first", []float32{1, 1}, []int64{0}, 1},
		{"no number is the largest", []float32{1, nan}, []int64{1}, 1},
		{"the first that is no number", []float32{nan, nan}, []int64{0}, 1},
		{"a target that is no class", []float32{1, 2}, []int64{7}, 0},
		{"no rows", nil, nil, 0},
	} {
		rows := len(c.targets)
		got := nn.Accuracy(tensor.FromFloat32(c.logits, rows, 2), tensor.FromInt64(c.targets, rows))
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	defer func() {
		var e *tensor.Error
		if err, _ := recover().(error); !errors.As(err, &e) {
			t.Errorf("shapes that do not fit gave %v", err)
		}
	}()
	nn.Accuracy(tensor.Zeros(3, 2), tensor.FromInt64([]int64{1, 0}))
}
