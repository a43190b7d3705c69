// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"math"
	"reflect"
	"runtime"
	"slices"
	"unsafe"

	"github.com/cohort-ml/cohort/tensor"
)

// Samples stands for the samples of a step. The Samples of the ranks and passes of the step add
// up, and are the same however the samples are shared out.
type Samples struct {
	Count    int64
	IDs      uint64 // of which samples, in any order
	Contents uint64 // of what they are
}

// Add adds other samples.
func (s *Samples) Add(o Samples) {
	s.Count += o.Count
	s.IDs += o.IDs
	s.Contents += o.Contents
}

// ID names a sample.
type ID struct {
	Epoch, Index int
}

// SamplesOf returns the Samples of a batch. ids are those of its samples, in order; a batch
// without ids counts as one sample.
//
// What belongs to a sample is found by lengths: in slices, arrays and tensors whose length, or
// first dim, is a multiple of the number of samples, each sample has its share. In a slice of
// slices, as of columns, each inner one is shared out. Other values count for all samples,
// except numbers, which tell the size of the batch, and unexported fields.
func SamplesOf(batch any, ids []ID) Samples {
	n := max(1, len(ids))
	rows := make([]uint64, n)
	addValue(rows, reflect.ValueOf(batch), 0)
	s := Samples{Count: int64(len(ids))}
	for i, row := range rows {
		id := uint64(0)
		if i < len(ids) {
			id = mix(mix(uint64(ids[i].Epoch)) ^ uint64(ids[i].Index))
			s.IDs += id
		}
		s.Contents += mix(row ^ id)
	}
	return s
}

// fold takes a number into a checksum that depends on the order.
func fold(sum, x uint64) uint64 { return mix(sum*0x9e3779b97f4a7c15 ^ x) }

// maxDepth is how deep values in a batch are looked at.
const maxDepth = 8

// addValue takes a value of a batch into the checksums of its samples.
func addValue(rows []uint64, v reflect.Value, depth int) {
	if depth > maxDepth {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if t, ok := reflect.TypeAssert[*tensor.Tensor](v); ok {
			addTensor(rows, t)
			return
		}
		addValue(rows, v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				addValue(rows, v.Field(i), depth+1)
			}
		}
	case reflect.Slice, reflect.Array:
		addList(rows, v, depth)
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return compareKeys(a, b) })
		for _, k := range keys {
			addValue(rows, v.MapIndex(k), depth+1)
		}
	case reflect.String:
		for i := range rows {
			rows[i] = foldString(rows[i], v.String())
		}
	}
}

// compareKeys orders the keys of a map that are strings or integers.
func compareKeys(a, b reflect.Value) int {
	switch {
	case a.Kind() == reflect.String:
		if a.String() < b.String() {
			return -1
		}
		return 1
	case a.CanInt():
		return int(min(max(a.Int()-b.Int(), -1), 1))
	}
	return 0
}

func foldString(sum uint64, s string) uint64 {
	sum = fold(sum, uint64(len(s)))
	for i := range len(s) {
		sum = fold(sum, uint64(s[i]))
	}
	return sum
}

// addList takes a slice or an array into the checksums.
func addList(rows []uint64, v reflect.Value, depth int) {
	n := len(rows)
	switch kind := v.Type().Elem().Kind(); kind {
	case reflect.Slice, reflect.Array, reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Map:
		if kind != reflect.Slice && kind != reflect.Array || !hasColumns(v, n) {
			if v.Len()%n == 0 {
				addShares(rows, v, func(row []uint64, e reflect.Value) { addValue(row, e, depth+1) })
				return
			}
		}
		for i := range v.Len() {
			addValue(rows, v.Index(i), depth+1)
		}
	default:
		if v.Len()%n != 0 {
			rows = rows[:1] // nobody knows whose it is
		}
		addNumbers(rows, v)
	}
}

// hasColumns reports whether each list in a list has an element for each sample.
func hasColumns(v reflect.Value, n int) bool {
	for i := range v.Len() {
		if v.Index(i).Len() != n {
			return false
		}
	}
	return v.Len() > 0
}

// addShares gives each sample its elements of a list.
func addShares(rows []uint64, v reflect.Value, add func(row []uint64, e reflect.Value)) {
	each := v.Len() / len(rows)
	for i := range v.Len() {
		at := i / each
		add(rows[at:at+1], v.Index(i))
	}
}

// addNumbers gives each sample its numbers of a list.
func addNumbers(rows []uint64, v reflect.Value) {
	if v.Len() == 0 {
		return
	}
	switch list := v.Interface().(type) {
	case []int64:
		foldEach(rows, bytesOf(list))
	case []int32:
		foldEach(rows, bytesOf(list))
	case []uint8:
		foldEach(rows, list)
	case []float32:
		foldEach(rows, bytesOf(list))
	case []float64:
		foldEach(rows, bytesOf(list))
	default:
		addShares(rows, v, func(row []uint64, e reflect.Value) { row[0] = fold(row[0], number(e)) })
	}
}

// number returns what stands for a number, a bool or a string of another type.
func number(v reflect.Value) uint64 {
	switch {
	case v.CanInt():
		return uint64(v.Int())
	case v.CanUint():
		return v.Uint()
	case v.CanFloat():
		return math.Float64bits(v.Float())
	case v.Kind() == reflect.Bool && v.Bool():
		return 1
	case v.Kind() == reflect.String:
		return foldString(0, v.String())
	}
	return 0
}

func bytesOf[T any](list []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*int(unsafe.Sizeof(list[0])))
}

// foldEach gives each sample its share of the bytes.
func foldEach(rows []uint64, data []byte) {
	each := len(data) / len(rows)
	for i := range rows {
		mine := data[i*each : (i+1)*each]
		size := 1
		if each%4 == 0 {
			size = 4
		}
		rows[i] = fold(fold(rows[i], uint64(each)), piece{data: mine, size: size}.sum())
	}
}

// addTensor gives each sample its elements of a tensor.
func addTensor(rows []uint64, t *tensor.Tensor) {
	host := onHost(t)
	data := host.Buffer().Data
	if shape := t.Shape(); len(shape) == 0 || shape[0]%len(rows) != 0 {
		rows = rows[:1]
	}
	foldEach(rows, data)
	runtime.KeepAlive(host)
}
