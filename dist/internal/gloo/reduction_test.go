// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
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
		op              collective.ReduceOp
		dtype           collective.DType
		own, came, want []byte
	}{
		{collective.Max, collective.Float32, f32(1, nan, 0, negative, 5), f32(2, 1, negative, 0, 3), f32(2, nan, 0, negative, 5)},
		{collective.Min, collective.Float32, f32(1, 1, 0, negative, 5), f32(2, nan, negative, 0, 3), f32(1, 1, 0, negative, 3)},
		{collective.Max, collective.Float16, h(1, -2, 7), h(2, -3, 6), h(2, -2, 7)},
		{collective.Min, collective.BFloat16, bf(1, -2, 7), bf(2, -3, 6), bf(1, -3, 6)},
		{collective.Sum, collective.Float16, h(2048, 60000), h(1, 60000), h(2048, float32(math.Inf(1)))}, // to the nearest even
		{collective.Sum, collective.BFloat16, bf(256, 1), bf(1, 2), bf(256, 3)},
		{collective.Sum, collective.Int8, []byte{127, 255}, []byte{1, 255}, []byte{128, 254}},
		{collective.Sum, collective.Uint8, []byte{250}, []byte{10}, []byte{4}},
		{collective.Sum, collective.Bool, []byte{1, 1, 0}, []byte{1, 0, 0}, []byte{2, 1, 0}}, // as bytes on the wire
		{collective.Product, collective.Bool, []byte{2, 1, 0}, []byte{1, 0, 1}, []byte{2, 0, 0}},
		{collective.BXor, collective.Int32, []byte{1, 2, 3, 4}, []byte{1, 1, 1, 1}, []byte{0, 3, 2, 5}},
	} {
		r, err := reductionFor(test.op, test.dtype, 2)
		if err != nil {
			t.Fatal(err)
		}
		got := bytes.Clone(test.own)
		r.into(got, test.came)
		if !bytes.Equal(got, test.want) && test.dtype != collective.Float32 {
			t.Errorf("%v of %v: %v and %v make %v, want %v", test.op, test.dtype, test.own, test.came, got, test.want)
		}
		if test.dtype == collective.Float32 { // whatever the bits of a NaN
			for i, x := range elements[float32](test.want) {
				y := elements[float32](got)[i]
				if math.Float32bits(x) != math.Float32bits(y) && !(math.IsNaN(float64(x)) && math.IsNaN(float64(y))) {
					t.Errorf("%v of %v: element %d is %v, want %v", test.op, test.dtype, i, y, x)
				}
			}
		}
		if test.dtype == collective.Bool {
			r.finish(got)
			for i, b := range got {
				if want := min(test.want[i], 1); b != want {
					t.Errorf("%v of %v: element %d is %d in the end, want %d", test.op, test.dtype, i, b, want)
				}
			}
		}
	}
	// An average is the whole sum divided, not multiplied by what is nearly a third.
	average, err := reductionFor(collective.Avg, collective.Float32, 3)
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
	var none *collective.ReduceError
	for _, op := range []collective.ReduceOp{collective.PremulSum(2), collective.BAnd} {
		if _, err := reductionFor(op, collective.Float32, 2); !errors.As(err, &none) {
			t.Errorf("%v of floats: %v", op, err)
		}
	}
	if _, err := reductionFor(collective.Avg, collective.Bool, 2); !errors.As(err, &none) {
		t.Errorf("an average of bools: %v", err)
	}
}
