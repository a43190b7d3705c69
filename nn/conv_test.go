// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// The checksums are of what torch.manual_seed(11), torch.nn.Conv2d(4, 6, (3, 2),
// groups=2) and torch.nn.ConvTranspose2d(3, 4, 2) of PyTorch 2.15 hold, in order.
func TestConvFirstValues(t *testing.T) {
	b := &Build{Generator: tensor.NewGenerator(11)}
	conv := NewConv2d(b, 4, 6, [2]int{3, 2}, Conv2dOptions{Groups: 2})
	transposed := NewConvTranspose2d(b, 3, 4, Square(2), Conv2dOptions{})
	for i, c := range []struct {
		p     *Parameter
		shape []int
		sum   uint32
	}{
		{conv.Weight, []int{6, 2, 3, 2}, 268491790},
		{conv.Bias, []int{6}, 2622074224},
		{transposed.Weight, []int{3, 4, 2, 2}, 3320768551},
		{transposed.Bias, []int{4}, 3315811150},
	} {
		var raw []byte
		for _, v := range c.p.Data().Float32s() {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		if got := crc32.ChecksumIEEE(raw); got != c.sum || !slices.Equal(c.p.Data().Shape(), c.shape) {
			t.Errorf("parameter %d: shape %v, checksum %d, want %v, %d", i, c.p.Data().Shape(), got, c.shape, c.sum)
		}
	}
}

func TestConvLayers(t *testing.T) {
	b := &Build{}
	m := NewSequential(
		NewConv2d(b, 3, 8, Square(3), Conv2dOptions{Stride: Square(2), Padding: Square(1), NoBias: true}),
		&ReLU{},
		NewConvTranspose2d(b, 8, 5, Square(3), Conv2dOptions{Stride: Square(2), Padding: Square(1), OutputPadding: Square(1)}),
	)
	var names []string
	for _, p := range Parameters(m) {
		names = append(names, p.Name())
	}
	if !slices.Equal(names, []string{"0.weight", "2.weight", "2.bias"}) {
		t.Errorf("parameters %v", names)
	}
	c := Training(context.Background())
	defer c.Close()
	y := c.Call(m, tensor.Zeros(2, 3, 10, 6))
	if !slices.Equal(y.Shape(), []int{2, 5, 10, 6}) {
		t.Errorf("shape %v", y.Shape())
	}
	if err := y.Sum().Backward(c); err != nil {
		t.Fatal(err)
	}
	for _, p := range Parameters(m) {
		if p.Grad() == nil {
			t.Errorf("%s has no gradient", p.Name())
		}
	}
}
