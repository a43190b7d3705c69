// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"iter"
	"runtime"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/tensor"
)

// Tensors is a state dict: tensors by their names, such as maps.All of a map
// or what a module yields. The order does not
// matter; a name may come once, a tensor under several names.
type Tensors = iter.Seq2[string, *tensor.Tensor]

// fileDTypes are the format's names of the dtypes.
var fileDTypes = [...]safetensors.DType{
	tensor.Float32: safetensors.F32, tensor.Float64: safetensors.F64, tensor.BFloat16: safetensors.BF16, tensor.Float16: safetensors.F16,
	tensor.Int64: safetensors.I64, tensor.Int32: safetensors.I32, tensor.Int8: safetensors.I8, tensor.Uint8: safetensors.U8,
	tensor.Bool: safetensors.Bool,
}

// LoadOption changes how tensors are loaded.
type LoadOption func(*loading)

type loading struct{ widen, narrow bool }

// WithWidening lets a float32 tensor take the values of one that the file has as
// bfloat16 or float16, as models are published for inference: float32 holds each
// of them. It rounds nothing, which would change a model unseen.
func WithWidening() LoadOption { return func(l *loading) { l.widen = true } }

// WithNarrowing lets a float32 tensor take the values of one that the file has as
// float64, rounded to the nearest, as PyTorch does it.
func WithNarrowing() LoadOption { return func(l *loading) { l.narrow = true } }

// named is a tensor with its description in a file.
type named struct {
	info   safetensors.Info
	tensor *tensor.Tensor
}

// WriteTensors writes tensors as a safetensors file; a tensor whose elements
// do not lie densely, or on a device whose memory the CPU does not see, is copied
// first. metadata may be nil. The tensors must
// not change until it returns.
func (w *Writer) WriteTensors(name string, tensors Tensors, metadata map[string]string) error {
	list, err := describe(name, tensors)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fail("encode", name, err)
	}
	raw := make([]safetensors.Tensor, len(list))
	for i := range list {
		// The dense copy must live as long as its bytes are used.
		list[i].tensor = list[i].tensor.Detach().Contiguous()
		if dev := list[i].tensor.Device(); dev != tensor.Meta && !tensor.CPUSees(dev) {
			list[i].tensor = list[i].tensor.ToDevice(tensor.CPU())
		}
		raw[i] = safetensors.Tensor{Info: list[i].info, Data: list[i].tensor.Buffer().Data}
	}
	err = w.WriteSafetensors(name, raw, metadata)
	runtime.KeepAlive(list)
	return err
}

// LoadTensors fills tensors, in place, from a file of the checkpoint. If names,
// shapes or dtypes differ it changes nothing and returns a [StateDictError]
// that lists all differences; [WithWidening] and [WithNarrowing] allow for dtypes that do. After an
// error of the disk some tensors are filled and some are not.
func (c *Checkpoint) LoadTensors(name string, tensors Tensors, opts ...LoadOption) error {
	f, err := c.OpenSafetensors(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return LoadTensors(f, tensors, opts...)
}

// MatchTensors returns the [StateDictError] that LoadTensors would return. It
// reads no data and needs none: with a model on tensor.Meta, nothing is allocated
// for what a configuration says before the files agree.
func MatchTensors(f Source, tensors Tensors, opts ...LoadOption) error {
	list, err := list(f.Name(), tensors)
	if err != nil {
		return err
	}
	_, err = match(f, list, opts)
	return err
}

// match compares tensors with a source's, and returns the dtype that each of them
// is filled from.
func match(f Source, list []named, opts []LoadOption) ([]tensor.DType, error) {
	var l loading
	for _, o := range opts {
		o(&l)
	}
	infos, from := make([]safetensors.Info, len(list)), make([]tensor.DType, len(list))
	stored := make(map[string]safetensors.DType)
	for _, info := range f.Infos() {
		stored[info.Name] = info.DType
	}
	for i, n := range list {
		infos[i], from[i] = n.info, n.tensor.DType()
		if from[i] == tensor.Float32 {
			from[i] = l.convertible(stored[n.info.Name])
			infos[i].DType = fileDTypes[from[i]]
		}
	}
	if err := MatchStateDict(f.Name(), f.Infos(), infos); err != nil {
		return nil, inModelDTypes(err, list)
	}
	return from, nil
}

// LoadTensors is [Checkpoint.LoadTensors] from any source.
func LoadTensors(f Source, tensors Tensors, opts ...LoadOption) error {
	list, err := describe(f.Name(), tensors)
	if err != nil {
		return err
	}
	from, err := match(f, list, opts)
	if err != nil {
		return err
	}
	for i, n := range list {
		dense, dev := n.tensor, n.tensor.Device()
		if dev != tensor.Meta && !tensor.CPUSees(dev) {
			dev = tensor.CPU()
		}
		if !dense.IsContiguous() || from[i] != dense.DType() || dev != dense.Device() {
			dense = tensor.New(dev, from[i], dense.Shape()...)
		}
		err := f.ReadTensor(n.info.Name, dense.Buffer().Data)
		dense.MarkWritten()
		if err != nil {
			return err
		}
		if from[i] == tensor.Bool {
			for at, b := range dense.Buffer().Data {
				if b > 1 {
					return fmt.Errorf("checkpoint: %s: tensor %q: element %d is %d, which is no bool", f.Name(), n.info.Name, at, b)
				}
			}
		}
		if dense != n.tensor {
			n.tensor.CopyFrom(dense.To(n.tensor.DType()).ToDevice(n.tensor.Device()))
		}
		runtime.KeepAlive(dense)
	}
	return nil
}

// inModelDTypes puts the model's own dtypes into the message where others would
// have done too.
func inModelDTypes(err error, list []named) error {
	var e *StateDictError
	if errors.As(err, &e) {
		own := make(map[string]safetensors.DType, len(list))
		for _, n := range list {
			own[n.info.Name] = n.info.DType
		}
		for i, m := range e.Misshapen {
			e.Misshapen[i].Want.DType = own[m.Name]
		}
	}
	return err
}

// convertible returns the dtype from which a float32 tensor is filled: the file's
// where the options allow for it, else float32.
func (l loading) convertible(stored safetensors.DType) tensor.DType {
	switch {
	case l.widen && stored == safetensors.BF16:
		return tensor.BFloat16
	case l.widen && stored == safetensors.F16:
		return tensor.Float16
	case l.narrow && stored == safetensors.F64:
		return tensor.Float64
	}
	return tensor.Float32
}

// Describe returns name, dtype and shape of each tensor, for [Fingerprint] and
// [MatchStateDict].
func Describe(tensors Tensors) ([]safetensors.Info, error) {
	list, err := describe("the state dict", tensors)
	infos := make([]safetensors.Info, len(list))
	for i, n := range list {
		infos[i] = n.info
	}
	return infos, err
}

// describe is list for tensors that must have data.
func describe(file string, tensors Tensors) ([]named, error) {
	list, err := list(file, tensors)
	if err != nil {
		return nil, err
	}
	for _, n := range list {
		if n.tensor.Device() == tensor.Meta {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q is on the meta device and has no data: make it on the CPU first", file, n.info.Name)
		}
	}
	return list, nil
}

// list describes tensors, each of which has a name of its own.
func list(file string, tensors Tensors) ([]named, error) {
	var list []named
	seen := map[string]bool{}
	for name, t := range tensors {
		fail := func(problem string) ([]named, error) {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q %s", file, name, problem)
		}
		if seen[name] {
			return fail("is there twice: give every tensor a name of its own")
		}
		seen[name] = true
		if t == nil {
			return fail("is nil")
		}
		info := safetensors.Info{Name: name, DType: fileDTypes[t.DType()], Shape: t.Shape()}
		list = append(list, named{info, t})
	}
	return list, nil
}
