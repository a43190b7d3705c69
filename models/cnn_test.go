// SPDX-License-Identifier: Apache-2.0

package models

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestCNN: what goes in, what comes out, and that a step down the gradient
// makes the loss smaller.
func TestCNN(t *testing.T) {
	g := CNNConfig{Channels: 1, Widths: []int{4, 8}, Classes: 3}
	m := NewCNN(&nn.Build{Generator: tensor.NewGenerator(1)}, g)
	x := tensor.Zeros(2, 1, 8, 6)
	x.WithFloat32s(func(v []float32) {
		for i := range v {
			v[i] = float32(i%7) / 7
		}
	})
	targets := tensor.FromInt64([]int64{2, 0}, 2)
	var losses []float64
	for range 2 {
		c := nn.Training(t.Context())
		logits := c.Call(m, x)
		if !slices.Equal(logits.Shape(), []int{2, 3}) {
			t.Fatalf("logits of shape %v", logits.Shape())
		}
		loss := tensor.CrossEntropy(logits, targets)
		losses = append(losses, loss.Item())
		if err := loss.Backward(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Close()
		for _, p := range nn.Parameters(m) {
			grad := p.Grad().Float32s()
			p.Data().WithFloat32s(func(v []float32) {
				for i := range v {
					v[i] -= 0.01 * grad[i]
				}
			})
		}
	}
	if losses[1] >= losses[0] {
		t.Errorf("losses %v", losses)
	}
	for want, bad := range map[string]CNNConfig{
		"channels": {Widths: []int{4}, Classes: 2}, "classes": {Channels: 1, Widths: []int{4}}, "stages": {Channels: 1, Classes: 2}, "width": {Channels: 1, Widths: []int{0}, Classes: 2},
	} {
		if bad.Validate() == nil {
			t.Errorf("%s: no error for %+v", want, bad)
		}
	}
	if side := g.MinSide(); side != 2 {
		t.Errorf("the smallest side is %d", side)
	}
}

// TestResNetOfSmallImages: the stem keeps 32·32 pixels, so that the last stage
// has 4·4; its parameters are one kernel smaller.
func TestResNetOfSmallImages(t *testing.T) {
	small, large := ResNet18Config, ResNet18Config
	small.SmallImages, small.Classes, large.Classes = true, 10, 10
	count := func(r ResNetConfig) (n int) {
		for _, p := range nn.Parameters(NewResNet(&nn.Build{Device: tensor.Meta}, r)) {
			n += p.Data().NumElems()
		}
		return n
	}
	if d := count(large) - count(small); d != 64*3*(7*7-3*3) {
		t.Errorf("%d parameters fewer", d)
	}
	c := nn.Evaluation(t.Context())
	defer c.Close()
	y := c.Call(NewResNet(&nn.Build{}, small), tensor.Zeros(1, 3, 8, 8))
	if !slices.Equal(y.Shape(), []int{1, 10}) {
		t.Errorf("logits of shape %v", y.Shape())
	}
}
