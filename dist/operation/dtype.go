// SPDX-License-Identifier: Apache-2.0

package operation

import "fmt"

// DType is the type of an element, as it travels between ranks.
type DType uint8

// The element types. Their numbers travel between ranks: add at the end only.
// All can be moved; section Reductions of package dist says how they are reduced.
const (
	Float32 DType = iota + 1
	Int64
	BFloat16
	Float16
	Float64
	Int32
	Int8
	Uint8
	Bool
)

var dtypes = [...]struct {
	name string
	size int
}{
	Float32: {"float32", 4}, Int64: {"int64", 8}, BFloat16: {"bfloat16", 2}, Float16: {"float16", 2}, Float64: {"float64", 8},
	Int32: {"int32", 4}, Int8: {"int8", 1}, Uint8: {"uint8", 1}, Bool: {"bool", 1},
}

func (d DType) String() string {
	if d.Valid() {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// Size returns the bytes of an element, 0 for an unknown type.
func (d DType) Size() int {
	if d.Valid() {
		return dtypes[d].size
	}
	return 0
}

// Valid reports whether d is one of the element types.
func (d DType) Valid() bool { return d >= Float32 && int(d) < len(dtypes) }
