// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// dtype is a dtype of PyTorch.
type dtype struct {
	name    string // without "torch."
	storage string // the class of its storages, "" for those without one
	st      safetensors.DType
	known   bool // st is its dtype
	size    int  // bytes of an element
	swap    int  // bytes of the numbers that an element is made of
}

var dtypes = []dtype{
	{"float32", "FloatStorage", safetensors.F32, true, 4, 4},
	{"float64", "DoubleStorage", safetensors.F64, true, 8, 8},
	{"float16", "HalfStorage", safetensors.F16, true, 2, 2},
	{"bfloat16", "BFloat16Storage", safetensors.BF16, true, 2, 2},
	{"int64", "LongStorage", safetensors.I64, true, 8, 8},
	{"int32", "IntStorage", safetensors.I32, true, 4, 4},
	{"int16", "ShortStorage", safetensors.I16, true, 2, 2},
	{"int8", "CharStorage", safetensors.I8, true, 1, 1},
	{"uint8", "ByteStorage", safetensors.U8, true, 1, 1},
	{"bool", "BoolStorage", safetensors.Bool, true, 1, 1},
	{"complex64", "ComplexFloatStorage", safetensors.C64, true, 8, 4},
	{"uint16", "", safetensors.U16, true, 2, 2},
	{"uint32", "", safetensors.U32, true, 4, 4},
	{"uint64", "", safetensors.U64, true, 8, 8},
	{"float8_e4m3fn", "", safetensors.F8E4M3, true, 1, 1},
	{"float8_e5m2", "", safetensors.F8E5M2, true, 1, 1},
	{"float8_e4m3fnuz", "", safetensors.F8E4M3FNUZ, true, 1, 1},
	{"float8_e5m2fnuz", "", safetensors.F8E5M2FNUZ, true, 1, 1},
	{"float8_e8m0fnu", "", safetensors.F8E8M0, true, 1, 1},

	{name: "complex128", storage: "ComplexDoubleStorage", size: 16},
	{name: "complex32", storage: "ComplexHalfStorage", size: 4},
	{name: "quint8", storage: "QUInt8Storage", size: 1},
	{name: "qint8", storage: "QInt8Storage", size: 1},
	{name: "qint32", storage: "QInt32Storage", size: 4},
	{name: "quint4x2", storage: "QUInt4x2Storage", size: 1},
	{name: "quint2x4", storage: "QUInt2x4Storage", size: 1},
	{name: "float4_e2m1fn_x2", size: 1},
}

// aliases are other names of dtypes, which old files have.
var aliases = map[string]string{"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16", "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32"}

func dtypeOf(match func(d dtype) bool) *dtype {
	for i, d := range dtypes {
		if match(d) {
			return &dtypes[i]
		}
	}
	return nil
}

func dtypeNamed(name string) *dtype {
	if full, ok := aliases[name]; ok {
		name = full
	}
	return dtypeOf(func(d dtype) bool { return d.name == name })
}

func dtypeOfStorage(class string) *dtype {
	return dtypeOf(func(d dtype) bool { return class != "" && d.storage == class })
}

func dtypeOfSafetensors(st safetensors.DType) *dtype {
	return dtypeOf(func(d dtype) bool { return d.known && d.st == st })
}

// isDTypeName reports names of torch that are dtypes, also those that no tensor here may have.
func isDTypeName(name string) bool {
	if dtypeNamed(name) != nil {
		return true
	}
	for _, kind := range []string{"int", "uint", "float", "complex", "bits", "qint", "quint"} {
		if rest, ok := strings.CutPrefix(name, kind); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return true
		}
	}
	return false
}

// DTypeName returns PyTorch's name of a dtype, such as bfloat16. ok is false for a dtype that
// PyTorch does not have.
func DTypeName(d safetensors.DType) (name string, ok bool) {
	if t := dtypeOfSafetensors(d); t != nil {
		return t.name, true
	}
	return "", false
}

// ParseDType returns the dtype that PyTorch calls name, such as bfloat16. ok is false for one
// that no safetensors file has.
func ParseDType(name string) (d safetensors.DType, ok bool) {
	if t := dtypeNamed(name); t != nil && t.known {
		return t.st, true
	}
	return 0, false
}
