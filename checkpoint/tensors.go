// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
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

// named is a tensor with its description in a file.
type named struct {
	info   safetensors.Info
	tensor *tensor.Tensor
}

// WriteTensors writes tensors as a safetensors file; a tensor whose elements
// do not lie densely is copied first. metadata may be nil. The tensors must
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
		raw[i] = safetensors.Tensor{Info: list[i].info, Data: list[i].tensor.Buffer().Data}
	}
	err = w.WriteSafetensors(name, raw, metadata)
	runtime.KeepAlive(list)
	return err
}

// LoadTensors fills tensors, in place, from a file of the checkpoint. If names,
// shapes or dtypes differ it changes nothing and returns a [StateDictError]
// that lists all differences. After an error of the disk some tensors are
// filled and some are not.
func (c *Checkpoint) LoadTensors(name string, tensors Tensors) error {
	f, err := c.OpenSafetensors(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return LoadTensors(f, tensors)
}

// LoadTensors is [Checkpoint.LoadTensors] from any source.
func LoadTensors(f Source, tensors Tensors) error {
	list, err := describe(f.Name(), tensors)
	if err != nil {
		return err
	}
	infos := make([]safetensors.Info, len(list))
	for i, n := range list {
		infos[i] = n.info
	}
	if err := MatchStateDict(f.Name(), f.Infos(), infos); err != nil {
		return err
	}
	for _, n := range list {
		dense := n.tensor
		if !dense.IsContiguous() {
			dense = tensor.New(dense.Device(), dense.DType(), dense.Shape()...)
		}
		err := f.ReadTensor(n.info.Name, dense.Buffer().Data)
		dense.MarkWritten()
		if err != nil {
			return err
		}
		if dense != n.tensor {
			n.tensor.CopyFrom(dense)
		}
		runtime.KeepAlive(dense)
	}
	return nil
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

func describe(file string, tensors Tensors) ([]named, error) {
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
		if t.Device() == tensor.Meta {
			return fail("is on the meta device and has no data: make it on the CPU first")
		}
		info := safetensors.Info{Name: name, Shape: t.Shape()}
		switch t.DType() {
		case tensor.Float32:
			info.DType = safetensors.F32
		case tensor.Int64:
			info.DType = safetensors.I64
		default:
			return fail("has dtype " + t.DType().String() + ", which is not saved")
		}
		list = append(list, named{info, t})
	}
	return list, nil
}
