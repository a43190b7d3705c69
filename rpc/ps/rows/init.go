// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/internal/random"
)

// Kinds of first values.
const (
	Zeros    = "zeros"
	Uniform  = "uniform"  // in [-Scale, Scale)
	Normal   = "normal"   // with mean 0 and standard deviation Scale
	Constant = "constant" // Scale
)

// Init says what a row begins with. The zero value means zeros.
//
// Value i of the row of a key is element i of stream uint64(key) of the Philox generator
// (Philox4x32, ten rounds) whose key is the sum of Seed and the 64-bit FNV-1a hash of the
// table's name, modulo 2⁶⁴. Uniform and Normal are those of Cohort's random tensors. A
// value is then rounded to the dtype of the table.
type Init struct {
	Kind  string  `json:"kind,omitempty"`
	Scale float64 `json:"scale,omitempty"`
	Seed  uint64  `json:"seed,omitempty"`
}

func (i Init) validate() string {
	switch i.Kind {
	case "", Zeros:
		if i.Scale != 0 {
			return fmt.Sprintf("init.scale is %v without a kind that has one: set init.kind to uniform, normal or constant", i.Scale)
		}
		return ""
	case Uniform, Normal, Constant:
	default:
		return fmt.Sprintf("init.kind is %q: want zeros, uniform, normal or constant", i.Kind)
	}
	if !(math.Abs(i.Scale) <= math.MaxFloat32) || i.Kind != Constant && i.Scale < 0 {
		return fmt.Sprintf("init.scale is %v: want a finite float32, negative only of a constant", i.Scale)
	}
	return ""
}

func (i Init) withDefaults() Init {
	if i.Kind == "" || i.Kind == Zeros {
		return Init{Kind: Zeros}
	}
	if i.Kind == Constant {
		i.Seed = 0
	}
	return i
}

// filler computes first values in float32.
type filler struct {
	kind   string
	scale  float32
	philox random.Philox
}

func newFiller(name string, i Init) filler {
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	h := uint64(offset)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * prime
	}
	return filler{i.Kind, float32(i.Scale), random.Philox{Key: h + i.Seed}}
}

// fill writes the first value of a key's row.
func (f *filler) fill(dst []float32, key int64) {
	switch f.kind {
	case Uniform:
		f.philox.Uniform(dst, uint64(key), 0, -f.scale, f.scale)
	case Normal:
		f.philox.Normal(dst, uint64(key), 0, 0, f.scale)
	case Constant:
		for i := range dst {
			dst[i] = f.scale
		}
	default:
		clear(dst)
	}
}

// First writes the first value of the row of a key, len(dst) = Width, in float32 and not
// yet rounded to DType.
func (s Schema) First(dst []float32, key int64) {
	f := newFiller(s.Name, s.Init)
	f.fill(dst, key)
}
