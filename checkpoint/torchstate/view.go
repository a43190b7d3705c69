// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// view is a source under other names, with some scalars of its own.
type view struct {
	src     dcp.Source
	infos   []safetensors.Info
	from    map[string]string // the source's name
	scalars map[string][]byte
}

var _ dcp.Source = (*view)(nil)

func newView(src dcp.Source) *view {
	return &view{src: src, from: map[string]string{}, scalars: map[string][]byte{}}
}

// add gives a tensor of the source a name.
func (v *view) add(name string, info safetensors.Info) {
	v.from[name] = info.Name
	info.Name = name
	v.infos = append(v.infos, info)
}

// addScalar adds a float32 without dims.
func (v *view) addScalar(name string, value float64) {
	v.scalars[name] = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(value)))
	v.infos = append(v.infos, safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{}})
}

func (v *view) find(name string) (string, error) {
	from, ok := v.from[name]
	if !ok {
		return "", fmt.Errorf("torchstate: %s has no tensor for %q", v.Name(), name)
	}
	return from, nil
}

func (v *view) Name() string              { return v.src.Name() }
func (v *view) Infos() []safetensors.Info { return slices.Clone(v.infos) }

// ReadTensor is as in checkpoint.Source.
func (v *view) ReadTensor(name string, dst []byte) error {
	if b := v.scalars[name]; b != nil {
		return v.readScalar(name, b, dst, 0)
	}
	from, err := v.find(name)
	if err != nil {
		return err
	}
	return v.src.ReadTensor(from, dst)
}

// ReadRange is as in checkpoint.Source.
func (v *view) ReadRange(name string, dst []byte, offset int64) error {
	if b := v.scalars[name]; b != nil {
		return v.readScalar(name, b, dst, offset)
	}
	from, err := v.find(name)
	if err != nil {
		return err
	}
	return v.src.ReadRange(from, dst, offset)
}

// ReadBox reads a box of a tensor.
func (v *view) ReadBox(name string, start, shape []int, dst []byte) error {
	if b := v.scalars[name]; b != nil {
		return v.readScalar(name, b, dst, 0)
	}
	from, err := v.find(name)
	if err != nil {
		return err
	}
	return v.src.ReadBox(from, start, shape, dst)
}

func (v *view) readScalar(name string, b, dst []byte, offset int64) error {
	if offset < 0 || offset > int64(len(b)) || int64(len(dst)) > int64(len(b))-offset {
		return fmt.Errorf("torchstate: %s: tensor %q has %d bytes, but %d from byte %d on were asked for", v.Name(), name, len(b), len(dst), offset)
	}
	copy(dst, b[offset:])
	return nil
}

// Boxes returns the boxes of a tensor.
func (v *view) Boxes(name string) []mesh.Box {
	if v.scalars[name] != nil {
		return []mesh.Box{{Start: []int{}, Shape: []int{}, LocalStart: []int{}}}
	}
	return v.src.Boxes(v.from[name])
}
