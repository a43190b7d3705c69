// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"slices"
	"testing"
)

func TestMaxPoolIndices(t *testing.T) {
	x := FromFloat32([]float32{
		1, 5, 2,
		5, 0, 3,
		4, 9, 9,
	}, 1, 3, 3)
	y, at := MaxPool2dWithIndices(x, Pool2dOptions{Kernel: [2]int{2, 2}, Stride: [2]int{1, 1}})
	if got := y.Float32s(); !slices.Equal(got, []float32{5, 5, 9, 9}) {
		t.Errorf("the maxima are %v", got)
	}
	if got := at.Int64s(); !slices.Equal(got, []int64{1, 1, 7, 7}) {
		t.Errorf("their places are %v, want the first of equal ones: 1, 1, 7, 7", got)
	}
}

func TestPoolsAndNormsKeepTheirDTypes(t *testing.T) {
	x := FromFloat32([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 1, 2, 2, 2).To(BFloat16)
	o := Pool2dOptions{Kernel: [2]int{2, 2}}
	norm := BatchNormOptions{Eps: 1e-5, Training: true}
	for _, dtype := range []DType{BFloat16, Float16} {
		x := x.To(dtype)
		for name, y := range map[string]*Tensor{
			"max pool": MaxPool2d(x, o), "avg pool": AvgPool2d(x, o), "batch norm": BatchNorm(x, nil, nil, norm),
			"batch norm of rows": BatchNorm(x.Reshape(4, 2), nil, nil, norm), "group norm": GroupNorm(x, 1, nil, nil, 1e-5),
		} {
			if y.DType() != dtype {
				t.Errorf("%s of %v is %v", name, dtype, y.DType())
			}
		}
	}
	norm.Residual = x.To(Float32)
	if y := BatchNorm(x, nil, nil, norm); y.DType() != Float32 {
		t.Errorf("a norm of bfloat16 to which float32 is added is %v", y.DType())
	}
}

func TestPoolAndNormMisuse(t *testing.T) {
	x := Zeros(2, 3, 4, 4)
	mustFail(t, "must be positive", func() { MaxPool2d(x, Pool2dOptions{}) })
	mustFail(t, "must be positive", func() { MaxPool2d(x, Pool2dOptions{Kernel: [2]int{2, 2}, Stride: [2]int{-1, 1}}) })
	mustFail(t, "at most half", func() { MaxPool2d(x, Pool2dOptions{Kernel: [2]int{2, 2}, Padding: [2]int{2, 0}}) })
	mustFail(t, "fewer than the window's 5", func() { AvgPool2d(x, Pool2dOptions{Kernel: [2]int{5, 1}}) })
	mustFail(t, "no dilation", func() { AvgPool2d(x, Pool2dOptions{Kernel: [2]int{1, 1}, Dilation: [2]int{2, 2}}) })
	mustFail(t, "cannot make planes", func() { AdaptiveAvgPool2d(x, 0, 1) })
	mustFail(t, "wants x", func() { MaxPool2d(Zeros(3), Pool2dOptions{Kernel: [2]int{1, 1}}) })
	mustFail(t, "wants float32", func() { MaxPool2d(FromInt64([]int64{1}, 1, 1), Pool2dOptions{Kernel: [2]int{1, 1}}) })
	mustFail(t, "2 groups do not divide the 3 channels", func() { GroupNorm(x, 2, nil, nil, 1e-5) })
	mustFail(t, "must have shape [3]", func() { GroupNorm(x, 1, Zeros(4), nil, 1e-5) })
	mustFail(t, "wants x", func() { InstanceNorm(Zeros(3), nil, nil, 1e-5) })
	training := BatchNormOptions{Training: true}
	mustFail(t, "has 1 values per channel", func() { BatchNorm(Zeros(1, 3), nil, nil, training) })
	mustFail(t, "must have shape [3]", func() { BatchNorm(x, Zeros(1), nil, training) })
	mustFail(t, "both running statistics", func() { BatchNorm(x, nil, nil, BatchNormOptions{RunningMean: Zeros(3)}) })
	mustFail(t, "needs NumBatches", func() {
		BatchNorm(x, nil, nil, BatchNormOptions{RunningMean: Zeros(3), RunningVar: Zeros(3), Cumulative: true})
	})
	mustFail(t, "the shape of x", func() { BatchNorm(x, nil, nil, BatchNormOptions{Residual: Zeros(2)}) })
}
