// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"iter"

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

type loading struct {
	widen, narrow, partial bool
	loaded                 *Loaded
	notice                 func(text string)
}

func loadingOf(opts []LoadOption) loading {
	l := loading{notice: func(string) {}}
	for _, o := range opts {
		o(&l)
	}
	return l
}

// WithWidening lets a float32 tensor take the values of one that the file has as
// bfloat16 or float16, as models are published for inference: float32 holds each
// of them. It rounds nothing, which would change a model unseen.
func WithWidening() LoadOption { return func(l *loading) { l.widen = true } }

// WithNarrowing lets a float32 tensor take the values of one that the file has as
// float64, rounded to the nearest, as PyTorch does it.
func WithNarrowing() LoadOption { return func(l *loading) { l.narrow = true } }

// WithPartial loads what is in both: tensors and values that the source lacks stay as they are,
// and what it has beside them is left. [Loaded] lists both. A tensor of another shape or dtype
// is still an error.
func WithPartial() LoadOption { return func(l *loading) { l.partial = true } }

// WithLoaded has [Load] say what it has loaded.
func WithLoaded(into *Loaded) LoadOption { return func(l *loading) { l.loaded = into } }

// WithNotice has [Load] call notice on rank 0 for each damaged checkpoint that it passes over.
func WithNotice(notice func(text string)) LoadOption { return func(l *loading) { l.notice = notice } }

// LoadTensors fills tensors, in place, from a section of the checkpoint. If names,
// shapes or dtypes differ it changes nothing and returns a [StateDictError]
// that lists all differences; the options allow for some. After an
// error of the storage some tensors are filled and some are not.
func (c *Checkpoint) LoadTensors(section string, tensors Tensors, opts ...LoadOption) error {
	return c.LoadParts(section, Whole(tensors), opts...)
}

// LoadParts fills this rank's parts of tensors, in place, from a section of the checkpoint,
// and reads nothing but these. Each rank calls it for itself. The errors are those of
// [Checkpoint.LoadTensors].
func (c *Checkpoint) LoadParts(section string, parts []Part, opts ...LoadOption) error {
	src, err := c.Source(section)
	if err != nil {
		return err
	}
	defer src.Close()
	return LoadParts(src, parts, opts...)
}

// MatchTensors returns the [StateDictError] that LoadTensors would return. It
// reads no data and needs none: with a model on tensor.Meta, nothing is allocated
// for what a configuration says before the files agree.
func MatchTensors(f Source, tensors Tensors, opts ...LoadOption) error {
	list := Whole(tensors)
	if err := checkList(f.Name(), list); err != nil {
		return err
	}
	_, err := match(f, list, loadingOf(opts))
	return err
}

// match compares tensors with a source's, and returns the dtype that each of them
// is filled from.
func match(f Source, list []Part, l loading) ([]tensor.DType, error) {
	infos, from := infosOf(list), make([]tensor.DType, len(list))
	stored := make(map[string]safetensors.DType)
	for _, info := range f.Infos() {
		stored[info.Name] = info.DType
	}
	for i, p := range list {
		from[i] = p.Local.DType()
		if from[i] == tensor.Float32 {
			from[i] = l.convertible(stored[p.Name])
			infos[i].DType = fileDTypes[from[i]]
		}
	}
	err := MatchStateDict(f.Name(), f.Infos(), infos)
	var e *StateDictError
	if l.partial && errors.As(err, &e) {
		if l.loaded != nil {
			l.loaded.Missing = append(l.loaded.Missing, e.Missing...)
			l.loaded.Extra = append(l.loaded.Extra, e.Extra...)
		}
		if len(e.Misshapen) == 0 {
			return from, nil
		}
	}
	if err != nil {
		return nil, inModelDTypes(err, list)
	}
	return from, nil
}

// LoadTensors is [Checkpoint.LoadTensors] from any source.
func LoadTensors(f Source, tensors Tensors, opts ...LoadOption) error {
	return LoadParts(f, Whole(tensors), opts...)
}

// inModelDTypes puts the model's own dtypes into the message where others would
// have done too.
func inModelDTypes(err error, list []Part) error {
	var e *StateDictError
	if errors.As(err, &e) {
		own := make(map[string]safetensors.DType, len(list))
		for _, p := range list {
			own[p.Name] = fileDTypes[p.Local.DType()]
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
func Describe(tensors Tensors) ([]safetensors.Info, error) { return DescribeParts(Whole(tensors)) }

// DescribeParts is Describe for the whole tensors of parts.
func DescribeParts(parts []Part) ([]safetensors.Info, error) {
	list, err := describe("the state dict", parts)
	return infosOf(list), err
}

func infosOf(list []Part) []safetensors.Info {
	infos := make([]safetensors.Info, len(list))
	for i, p := range list {
		infos[i] = safetensors.Info{Name: p.Name, DType: fileDTypes[p.Local.DType()], Shape: p.shape()}
	}
	return infos
}

// describe returns parts that have data and can be put together.
func describe(file string, parts []Part) ([]Part, error) {
	if err := checkList(file, parts); err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Local.Device() == tensor.Meta && !p.Away {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q is on the meta device and has no data: make it on the CPU first", file, p.Name)
		}
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("checkpoint: %s: tensor %q %w", file, p.Name, err)
		}
	}
	return parts, nil
}

// checkList wants tensors each of which has a name of its own.
func checkList(file string, parts []Part) error {
	seen := make(map[string]bool, len(parts))
	for _, p := range parts {
		switch {
		case seen[p.Name]:
			return fmt.Errorf("checkpoint: %s: tensor %q is there twice: give every tensor a name of its own", file, p.Name)
		case p.Local == nil:
			return fmt.Errorf("checkpoint: %s: tensor %q is nil", file, p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}
