// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/half"
)

// TestReductions compares elements with what PyTorch's ranks make of them: the own one
// comes first.
func TestReductions(t *testing.T) {
	nan, negative := float32(math.NaN()), float32(math.Copysign(0, -1))
	f32 := func(vs ...float32) []byte { return floats(len(vs), func(i int) float32 { return vs[i] }) }
	f16 := func(convert func(float32) uint16, vs ...float32) []byte {
		var b []byte
		for _, v := range vs {
			h := convert(v)
			b = append(b, byte(h), byte(h>>8))
		}
		return b
	}
	h, bf := func(vs ...float32) []byte { return f16(half.Float16, vs...) }, func(vs ...float32) []byte { return f16(half.BFloat16, vs...) }
	for _, test := range []struct {
		op              operation.ReduceOp
		dtype           operation.DType
		own, came, want []byte
	}{
		{operation.Max, operation.Float32, f32(1, nan, 0, negative, 5), f32(2, 1, negative, 0, 3), f32(2, nan, 0, negative, 5)},
		{operation.Min, operation.Float32, f32(1, 1, 0, negative, 5), f32(2, nan, negative, 0, 3), f32(1, 1, 0, negative, 3)},
		{operation.Max, operation.Float16, h(1, -2, 7), h(2, -3, 6), h(2, -2, 7)},
		{operation.Min, operation.BFloat16, bf(1, -2, 7), bf(2, -3, 6), bf(1, -3, 6)},
		{operation.Sum, operation.Float16, h(2048, 60000), h(1, 60000), h(2048, float32(math.Inf(1)))}, // to the nearest even
		{operation.Sum, operation.BFloat16, bf(256, 1), bf(1, 2), bf(256, 3)},
		{operation.Sum, operation.Int8, []byte{127, 255}, []byte{1, 255}, []byte{128, 254}},
		{operation.Sum, operation.Uint8, []byte{250}, []byte{10}, []byte{4}},
		{operation.Sum, operation.Bool, []byte{1, 1, 0}, []byte{1, 0, 0}, []byte{2, 1, 0}}, // as bytes on the wire
		{operation.Product, operation.Bool, []byte{2, 1, 0}, []byte{1, 0, 1}, []byte{2, 0, 0}},
		{operation.BXor, operation.Int32, []byte{1, 2, 3, 4}, []byte{1, 1, 1, 1}, []byte{0, 3, 2, 5}},
	} {
		r, err := reductionFor(test.op, test.dtype, 2)
		if err != nil {
			t.Fatal(err)
		}
		got := bytes.Clone(test.own)
		r.into(got, test.came)
		if !bytes.Equal(got, test.want) && test.dtype != operation.Float32 {
			t.Errorf("%v of %v: %v and %v make %v, want %v", test.op, test.dtype, test.own, test.came, got, test.want)
		}
		if test.dtype == operation.Float32 { // whatever the bits of a NaN
			for i, x := range elements[float32](test.want) {
				y := elements[float32](got)[i]
				if math.Float32bits(x) != math.Float32bits(y) && !(math.IsNaN(float64(x)) && math.IsNaN(float64(y))) {
					t.Errorf("%v of %v: element %d is %v, want %v", test.op, test.dtype, i, y, x)
				}
			}
		}
		if test.dtype == operation.Bool {
			r.finish(got)
			for i, b := range got {
				if want := min(test.want[i], 1); b != want {
					t.Errorf("%v of %v: element %d is %d in the end, want %d", test.op, test.dtype, i, b, want)
				}
			}
		}
	}
	// An average is the whole sum divided, not multiplied by what is nearly a third.
	average, err := reductionFor(operation.Avg, operation.Float32, 3)
	if err != nil {
		t.Fatal(err)
	}
	sums := floats(1000, func(i int) float32 { return float32(i)*0.37 - 100 })
	v := bytes.Clone(sums)
	average.finish(v)
	for i, s := range elements[float32](sums) {
		if got := elements[float32](v)[i]; got != s/3 {
			t.Errorf("a third of %v is %v, want %v", s, got, s/3)
		}
	}
	var none *fault.ReduceError
	for _, op := range []operation.ReduceOp{operation.PremulSum(2), operation.BAnd} {
		if _, err := reductionFor(op, operation.Float32, 2); !errors.As(err, &none) {
			t.Errorf("%v of floats: %v", op, err)
		}
	}
	if _, err := reductionFor(operation.Avg, operation.Bool, 2); !errors.As(err, &none) {
		t.Errorf("an average of bools: %v", err)
	}
}
