// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"math"
)

// DType is the type of a tensor's elements. The order of the constants is the
// format's own: the reference writer lays out higher dtypes first.
type DType uint8

// The dtypes of the format. Cohort computes with few of them; all can be read
// and written as bytes.
const (
	Bool DType = iota
	F4
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
	numDTypes
)

var dtypes = [numDTypes]struct {
	name    string
	numBits int
}{
	Bool: {"BOOL", 8}, F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6},
	U8: {"U8", 8}, I8: {"I8", 8}, F8E5M2: {"F8_E5M2", 8}, F8E4M3: {"F8_E4M3", 8},
	F8E8M0: {"F8_E8M0", 8}, F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16},
	I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// String returns the format's name of the dtype, such as "BF16".
func (d DType) String() string {
	if d >= numDTypes {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// NumBits returns the size of one element in bits, 0 for an unknown dtype.
func (d DType) NumBits() int {
	if d >= numDTypes {
		return 0
	}
	return dtypes[d].numBits
}

// ParseDType returns the dtype that the format calls name.
func ParseDType(name string) (DType, bool) {
	for d, t := range dtypes {
		if t.name == name {
			return DType(d), true
		}
	}
	return 0, false
}

// numBytes returns the bytes of a tensor, or what is wrong with its shape.
func numBytes(d DType, shape []int) (int64, string) {
	if d >= numDTypes {
		return 0, fmt.Sprintf("has an unknown dtype (%d)", uint8(d))
	}
	n := int64(1)
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Sprintf("has a negative size in its shape %v", shape)
		}
		// An overflow is refused even where a later 0 would make the product
		// 0, as the reference does.
		if s != 0 && n > math.MaxInt64/int64(s) {
			return 0, fmt.Sprintf("has more elements than can be counted: shape %v", shape)
		}
		n *= int64(s)
	}
	numBits := int64(d.NumBits())
	if n > math.MaxInt64/numBits {
		return 0, fmt.Sprintf("has more bytes than can be counted: shape %v of %v", shape, d)
	}
	if n*numBits%8 != 0 {
		return 0, fmt.Sprintf("does not end on a byte: %d elements of %d bits (%v)", n, numBits, d)
	}
	return n * numBits / 8, ""
}
