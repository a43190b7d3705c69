// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/pickle"
)

// Refused stands in a value for a tensor that cannot be read.
type Refused struct{ Reason string }

// The calls of a file whose meaning is known, by their full names.
const (
	rebuildV1        = "torch._utils._rebuild_tensor"
	rebuildV2        = "torch._utils._rebuild_tensor_v2"
	rebuildV3        = "torch._utils._rebuild_tensor_v3"
	rebuildParam     = "torch._utils._rebuild_parameter"
	rebuildParamWith = "torch._utils._rebuild_parameter_with_state"
	rebuildFromType  = "torch._tensor._rebuild_from_type_v2"
)

// refusedCalls make tensors that are not read.
var refusedCalls = map[string]string{
	"torch._utils._rebuild_sparse_tensor":                 "is sparse: save its dense form (to_dense)",
	"torch._utils._rebuild_sparse_csr_tensor":             "is sparse: save its dense form (to_dense)",
	"torch._utils._rebuild_qtensor":                       "is quantized: save its parts (int_repr, q_scale) or dequantize it",
	"torch._utils._rebuild_nested_tensor":                 "is nested: save its parts",
	"torch._utils._rebuild_meta_tensor_no_storage":        "is on the meta device and has no data",
	"torch._utils._rebuild_wrapper_subclass":              "is of a subclass, such as a DTensor: save its full_tensor(), or save with torch.distributed.checkpoint",
	"torch._utils._rebuild_device_tensor_from_numpy":      "is of a device that saves NumPy arrays: move it to the CPU before you save it",
	"torch._utils._rebuild_device_tensor_from_cpu_tensor": "is of a device that saves copies: move it to the CPU before you save it",
}

// containers are further globals that are allowed.
var containers = []string{
	"collections.OrderedDict", "collections.Counter", "collections.defaultdict",
	"builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.bytes", "builtins.complex", "builtins.dict", "builtins.list", "builtins.int", "builtins.float",
	"_codecs.encode",
	"torch.Size", "torch.device", "torch.serialization._get_layout", "torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer",
	"torch.storage.UntypedStorage", "torch.storage.TypedStorage", "torch.strided",
	"torch.per_tensor_affine", "torch.per_tensor_symmetric", "torch.per_channel_affine", "torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams",
	"torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr", "torch.sparse_bsc",
	rebuildV1, rebuildV2, rebuildV3, rebuildParam, rebuildParamWith, rebuildFromType,
}

// fullName returns the name of a global as Python 3 has it.
func fullName(g pickle.Global) string {
	if g.Module == "__builtin__" {
		g.Module = "builtins"
	}
	return g.String()
}

// Allow is the list of globals that a file of tensors and plain containers may have.
func Allow(g pickle.Global) bool {
	name := fullName(g)
	if slices.Contains(containers, name) || refusedCalls[name] != "" {
		return true
	}
	return g.Module == "torch" && (isDTypeName(g.Name) || dtypeOfStorage(g.Name) != nil)
}

// builder turns the parts of a pickle into what they mean.
type builder struct{ f *File }

// value returns what a decoded value means.
func (b builder) value(v any) (any, error) {
	switch v := v.(type) {
	case pickle.Tuple:
		items, err := b.values(v)
		return pickle.Tuple(items), err
	case *pickle.List:
		items, err := b.values(v.Items)
		return &pickle.List{Items: items}, err
	case *pickle.Set:
		items, err := b.values(v.Items)
		return &pickle.Set{Items: items, Frozen: v.Frozen}, err
	case *pickle.Dict:
		return b.dict(v.Entries)
	case *pickle.Persistent:
		return Refused{"is a storage without a tensor: save the tensor"}, nil
	case *pickle.Object:
		return b.object(v)
	}
	return v, nil
}

func (b builder) values(in []any) ([]any, error) {
	out := make([]any, len(in))
	for i, v := range in {
		var err error
		if out[i], err = b.value(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (b builder) dict(in []pickle.Entry) (*pickle.Dict, error) {
	d := &pickle.Dict{Entries: make([]pickle.Entry, len(in))}
	for i, e := range in {
		key, err := b.value(e.Key)
		if err != nil {
			return nil, err
		}
		value, err := b.value(e.Value)
		if err != nil {
			return nil, err
		}
		d.Entries[i] = pickle.Entry{Key: key, Value: value}
	}
	return d, nil
}

// object returns what a call makes.
func (b builder) object(o *pickle.Object) (any, error) {
	name := fullName(o.Class)
	args := o.Args
	wrong := func() (any, error) {
		return nil, b.f.errorf("has a call of %s with %d arguments that make no sense", name, len(args))
	}
	if reason := refusedCalls[name]; reason != "" {
		return Refused{reason}, nil
	}
	switch name {
	case rebuildV1, rebuildV2, rebuildV3:
		return b.tensor(name, args)
	case rebuildParam, rebuildParamWith:
		if len(args) < 2 {
			return wrong()
		}
		v, err := b.value(args[0])
		if t, ok := v.(*Tensor); ok {
			t.IsParameter = true
			t.RequiresGrad, _ = args[1].(bool)
		}
		return v, err
	case rebuildFromType:
		// (function, type, its arguments, attributes): a tensor with attributes, or of a subclass.
		if len(args) != 4 {
			return wrong()
		}
		call, ok := args[0].(pickle.Global)
		class, ok2 := args[1].(pickle.Global)
		inner, ok3 := args[2].(pickle.Tuple)
		if !ok || !ok2 || !ok3 {
			return wrong()
		}
		v, err := b.object(&pickle.Object{Class: call, Args: inner})
		if t, ok := v.(*Tensor); ok && fullName(class) != "torch.Tensor" {
			t.IsParameter = true
		}
		return v, err
	case "collections.OrderedDict", "collections.Counter", "collections.defaultdict", "builtins.dict":
		return b.mapping(o)
	case "builtins.set", "builtins.frozenset", "builtins.list":
		var items []any
		if len(args) > 0 {
			l, ok := args[0].(*pickle.List)
			if !ok {
				return wrong()
			}
			items = l.Items
		}
		if name == "builtins.list" {
			return b.value(&pickle.List{Items: slices.Concat(items, o.Items)})
		}
		return b.value(&pickle.Set{Items: items, Frozen: name == "builtins.frozenset"})
	case "builtins.bytearray", "builtins.bytes", "_codecs.encode":
		v, ok := b.bytes(args)
		if !ok {
			return wrong()
		}
		return v, nil
	case "builtins.complex":
		if len(args) == 2 {
			re, ok := args[0].(float64)
			im, ok2 := args[1].(float64)
			if ok && ok2 {
				return complex(re, im), nil
			}
		}
		return wrong()
	case "torch.Size":
		if len(args) == 1 {
			if size, ok := args[0].(pickle.Tuple); ok {
				return b.value(size)
			}
		}
		return wrong()
	}
	// A device, a layout: kept as they are.
	if _, err := b.values(args); err != nil {
		return nil, err
	}
	return o, nil
}

// mapping returns the dict that a call of a class of dicts makes. The attributes of a state
// dict (_metadata) are versions of modules; they are left out.
func (b builder) mapping(o *pickle.Object) (any, error) {
	var entries []pickle.Entry
	for _, arg := range o.Args {
		switch arg := arg.(type) {
		case *pickle.Dict:
			entries = append(entries, arg.Entries...)
		case *pickle.List: // of pairs, from Python 2
			for _, item := range arg.Items {
				var pair []any
				switch item := item.(type) {
				case *pickle.List:
					pair = item.Items
				case pickle.Tuple:
					pair = item
				}
				if len(pair) != 2 {
					return nil, b.f.errorf("has a dict that is made of other things than pairs")
				}
				entries = append(entries, pickle.Entry{Key: pair[0], Value: pair[1]})
			}
		}
	}
	return b.dict(append(entries, o.Entries...))
}

// bytes returns what bytes(…), bytearray(…) and encode(text, "latin1") make.
func (b builder) bytes(args pickle.Tuple) ([]byte, bool) {
	if len(args) == 0 {
		return []byte{}, true
	}
	switch v := args[0].(type) {
	case []byte:
		return v, true
	case *pickle.Object:
		if fullName(v.Class) == "_codecs.encode" {
			return b.bytes(v.Args)
		}
	case string:
		out := make([]byte, 0, len(v))
		for _, r := range v {
			if r > math.MaxUint8 {
				return nil, false
			}
			out = append(out, byte(r))
		}
		return out, len(args) == 2 && strings.HasPrefix(strings.ReplaceAll(fmt.Sprint(args[1]), "-", ""), "latin1")
	}
	return nil, false
}

// tensor returns the tensor that a call makes.
func (b builder) tensor(call string, args pickle.Tuple) (any, error) {
	least := map[string]int{rebuildV1: 4, rebuildV2: 6, rebuildV3: 7}[call]
	if len(args) < least {
		return nil, b.f.errorf("has a call of %s with %d arguments", call, len(args))
	}
	s, refused, err := b.storage(args[0])
	if err != nil || refused != "" {
		return Refused{refused}, err
	}
	d, next := s.dtype, least
	if call == rebuildV3 {
		g, ok := args[6].(pickle.Global)
		if !ok || g.Module != "torch" {
			return nil, b.f.errorf("has a tensor of a dtype that is no dtype")
		}
		if d = dtypeNamed(g.Name); d == nil {
			return Refused{fmt.Sprintf("is of torch.%s, which safetensors files and Cohort do not have", g.Name)}, nil
		}
	}
	if d == nil {
		return nil, b.f.errorf("has a tensor without a dtype")
	}
	if !d.known {
		return Refused{fmt.Sprintf("is of torch.%s, which safetensors files and Cohort do not have: save it as another dtype (view_as_real for complex numbers)", d.name)}, nil
	}
	offset, ok := args[1].(int64)
	shape, err := ints(args[2])
	if err != nil || !ok {
		return nil, b.f.errorf("has a tensor of a shape or an offset that makes no sense (%v)", err)
	}
	strides, err := ints(args[3])
	if err != nil {
		return nil, b.f.errorf("has a tensor of strides that make no sense (%v)", err)
	}
	// The last argument has the bits that say that the elements are to be negated.
	if len(args) > next {
		if bits, ok := args[next].(*pickle.Dict); ok && len(bits.Entries) > 0 {
			for _, e := range bits.Entries {
				if set, ok := e.Value.(bool); !ok || set {
					return Refused{fmt.Sprintf("is a view with the %v bit: save a copy (resolve_conj, resolve_neg)", e.Key)}, nil
				}
			}
		} else if args[next] != nil && !ok {
			return nil, b.f.errorf("has a tensor with a mark that makes no sense")
		}
	}
	t, err := view(s, d, int(offset), shape, strides)
	if err != nil {
		return nil, b.f.errorf("member %q: a tensor %w", s.member.name, err)
	}
	t.Storage = s.member.name
	if call != rebuildV1 {
		t.RequiresGrad, _ = args[4].(bool)
	}
	return t, nil
}

// ints returns a tuple of numbers.
func ints(v any) ([]int, error) {
	if o, ok := v.(*pickle.Object); ok && fullName(o.Class) == "torch.Size" && len(o.Args) == 1 {
		v = o.Args[0]
	}
	t, ok := v.(pickle.Tuple)
	if !ok || len(t) > maxDims {
		return nil, fmt.Errorf("it is no tuple of at most %d numbers", maxDims)
	}
	out := make([]int, len(t))
	for i, n := range t {
		k, ok := n.(int64)
		if !ok {
			return nil, fmt.Errorf("it has something that is no number")
		}
		out[i] = int(k)
	}
	return out, nil
}

// storage returns the storage that a persistent id names; refused says why a tensor of it is
// not read.
func (b builder) storage(v any) (s *storage, refused string, err error) {
	p, ok := v.(*pickle.Persistent)
	if !ok {
		return nil, "", b.f.errorf("has a tensor without a storage")
	}
	id, ok := p.ID.(pickle.Tuple)
	if !ok || len(id) < 5 || id[0] != any("storage") {
		return nil, "", b.f.errorf("has a reference to something that is no storage")
	}
	class, ok := id[1].(pickle.Global)
	key, ok2 := id[2].(string)
	location, ok3 := id[3].(string)
	count, ok4 := id[4].(int64)
	if !ok || !ok2 || !ok3 || !ok4 || count < 0 || key == "" {
		return nil, "", b.f.errorf("has a reference to a storage that makes no sense")
	}
	if location == "meta" {
		return nil, "is on the meta device and has no data", nil
	}
	var d *dtype
	size := int64(1)
	if name := class.String(); name != "torch.storage.UntypedStorage" {
		if d = dtypeOfStorage(class.Name); d == nil || class.Module != "torch" {
			return nil, "", b.f.errorf("has a storage of the class %s, which is not known", name)
		}
		size = int64(d.size)
	}
	if count > math.MaxInt64/size {
		return nil, "", b.f.errorf("has a storage of %d elements", count)
	}
	m := b.f.archive.members[b.f.top+"/data/"+key]
	if m == nil {
		return nil, "", b.f.errorf("names the storage %q, and has no member %q", key, b.f.top+"/data/"+key)
	}
	if m.size != count*size {
		return nil, "", b.f.archive.errorf(m.name, "has %d bytes, and its storage of %d elements of %d bytes has %d", m.size, count, size, count*size)
	}
	if s = b.f.storages[key]; s == nil || s.dtype != d {
		if s != nil {
			return nil, "", b.f.archive.errorf(m.name, "is a storage of two dtypes")
		}
		s = &storage{archive: b.f.archive, member: m, dtype: d, size: m.size, big: b.f.big}
		b.f.storages[key] = s
	}
	return s, "", nil
}
