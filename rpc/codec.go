// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
	"github.com/cohort-ml/cohort/tensor"
)

// Tags of what is no plain CBOR.
const (
	tagTensor = 17231 // the number of a tensor in the message
	tagRRef   = 17232 // a remote reference
)

// codec compiles the types of methods.
var codec = cbor.New(special)

var (
	tensorType = reflect.TypeFor[*tensor.Tensor]()
	wiredType  = reflect.TypeFor[wired]()
)

// wired are types that take part in the protocol when they travel inside a
// message. A pointer type implements it; nil travels as null and is never asked.
type wired interface {
	// wireText describes the type, as "rref<tensor>" does. It is asked of nil.
	wireText() (string, error)
	// encodeWire appends one item.
	encodeWire(m *wire.Outgoing) error
	// decodeWire reads one item into the receiver, which is new.
	decodeWire(r *wire.Received) error
}

// special implements the special types of [cbor.New].
func special(t reflect.Type) (cbor.Special, error) {
	if t == tensorType {
		return cbor.Special{Text: "tensor", Encode: encodeTensor, Decode: decodeTensor}, nil
	}
	if t.Kind() == reflect.Pointer && t.Implements(wiredType) {
		text, err := reflect.Zero(t).Interface().(wired).wireText()
		if err != nil {
			return cbor.Special{}, fmt.Errorf("type %v: %w", t, err)
		}
		return cbor.Special{Text: text, Encode: encodeWired(t), Decode: decodeWired(t)}, nil
	}
	if t == tensorType.Elem() {
		return cbor.Special{}, fmt.Errorf("type %v: tensors travel as *tensor.Tensor", t)
	}
	return cbor.Special{}, nil
}

func encodeTensor(ce *cbor.Encoder, p unsafe.Pointer) {
	t := *(**tensor.Tensor)(p)
	if t == nil {
		ce.Null()
		return
	}
	ce.Tag(tagTensor)
	ce.Uint(uint64(ce.Env.(*wire.Outgoing).Tensor(t)))
}

// wantTensor has the words of Python too: callers in Go have the types, so most callers
// that send something else are Python programs.
var wantTensor = fmt.Sprintf("a tensor (tag %d; from Python an array of NumPy's or a tensor of PyTorch's)", tagTensor)

func decodeTensor(cd *cbor.Decoder, p unsafe.Pointer) {
	if cd.Null() {
		return
	}
	r := cd.Env.(*wire.Received)
	switch tag, ok := cd.Tag(); {
	case !ok:
		cd.Mismatch(wantTensor)
		return
	case tag != tagTensor:
		cd.Fail(fmt.Errorf("want %s, got tag %d", wantTensor, tag))
		return
	}
	switch n := cd.Uint(); {
	case cd.Err() != nil:
	case n >= uint64(len(r.Tensors)):
		cd.Fail(fmt.Errorf("tensor %d of a message that has %d", n, len(r.Tensors)))
	default:
		*(**tensor.Tensor)(p) = r.Tensors[n]
	}
}

func encodeWired(t reflect.Type) func(*cbor.Encoder, unsafe.Pointer) {
	return func(ce *cbor.Encoder, p unsafe.Pointer) {
		v := reflect.NewAt(t, p).Elem()
		if v.IsNil() {
			ce.Null()
			return
		}
		if err := v.Interface().(wired).encodeWire(ce.Env.(*wire.Outgoing)); err != nil {
			ce.Fail(err)
		}
	}
}

func decodeWired(t reflect.Type) func(*cbor.Decoder, unsafe.Pointer) {
	return func(cd *cbor.Decoder, p unsafe.Pointer) {
		if cd.Null() {
			return
		}
		v := reflect.New(t.Elem())
		if err := v.Interface().(wired).decodeWire(cd.Env.(*wire.Received)); err != nil {
			cd.Fail(err)
			return
		}
		reflect.NewAt(t, p).Elem().Set(v)
	}
}

// planOf returns the plan of a type, which panics if it cannot travel: methods
// are declared in the program's text.
func planOf[T any](what, name string) *cbor.Plan {
	p, err := codec.Plan(reflect.TypeFor[T]())
	if err != nil {
		panic(fmt.Sprintf("rpc: method %q: the %s: %v", name, what, err))
	}
	return p
}
