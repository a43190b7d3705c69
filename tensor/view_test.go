// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"testing"
)

func counting(shape ...int) *Tensor {
	data := make([]float32, numElems(shape))
	for i := range data {
		data[i] = float32(i)
	}
	return FromFloat32(data, shape...)
}

func TestViewsShowTheRightElements(t *testing.T) {
	x := counting(2, 3, 4)
	for _, c := range []struct {
		name  string
		got   *Tensor
		shape []int
		want  []float32
	}{
		{"select", x.Select(1, 2), []int{2, 4}, []float32{8, 9, 10, 11, 20, 21, 22, 23}},
		{"narrow", x.Narrow(2, 1, 2).Select(0, 1), []int{3, 2}, []float32{13, 14, 17, 18, 21, 22}},
		{"permute", x.Permute(2, 0, 1).Select(0, 3), []int{2, 3}, []float32{3, 7, 11, 15, 19, 23}},
		{"transpose", counting(2, 3).T(), []int{3, 2}, []float32{0, 3, 1, 4, 2, 5}},
		{"reshape of a transpose", counting(2, 3).T().Reshape(-1), []int{6}, []float32{0, 3, 1, 4, 2, 5}},
		{"expand", counting(2, 1).Expand(2, 2, 3), []int{2, 2, 3}, []float32{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}},
		{"flatten", x.Flatten(0, 1).Select(0, 5), []int{4}, []float32{20, 21, 22, 23}},
		{"empty", Zeros(0, 3).Reshape(3, 0), []int{3, 0}, []float32{}},
	} {
		if got := c.got.Shape(); !slices.Equal(got, c.shape) {
			t.Errorf("%s: shape %v, want %v", c.name, got, c.shape)
		}
		if got := c.got.Float32s(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestViewsShareTheirStorage(t *testing.T) {
	x := counting(2, 3)
	x.T().Narrow(0, 1, 1).Fill(9)
	if got := x.Float32s(); !slices.Equal(got, []float32{0, 9, 2, 3, 9, 5}) {
		t.Errorf("after filling a column through a view: %v", got)
	}
	y := Zeros(3, 2)
	y.CopyFrom(x.T())
	if got := y.Float32s(); !slices.Equal(got, []float32{0, 3, 9, 9, 2, 5}) {
		t.Errorf("a copy of the transpose is %v", got)
	}
}

func TestEmptyTensors(t *testing.T) {
	a := Zeros(0, 3)
	if got := a.MatMul(Zeros(3, 2)).Shape(); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("shape %v, want [0 2]", got)
	}
	if got := Zeros(2, 0).MatMul(Zeros(0, 3)).Float32s(); !slices.Equal(got, make([]float32, 6)) {
		t.Errorf("an empty inner dim gives %v, want zeros", got)
	}
	if got := Zeros(0, 3).Sum(0).Float32s(); !slices.Equal(got, make([]float32, 3)) {
		t.Errorf("the sum of nothing is %v, want zeros", got)
	}
	if got := Zeros(0, 3).Mean(0).Float32s(); len(got) != 3 || got[0] == got[0] {
		t.Errorf("the mean of nothing is %v, want NaN", got)
	}
	if got := Zeros(0).Sum().Item(); got != 0 {
		t.Errorf("the sum of nothing is %v, want 0", got)
	}
}
