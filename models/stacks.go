// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
)

// A model has the weights of a layer's experts stacked, one tensor [experts, …] for each
// projection. Files of published families have a tensor for each expert.

// maxStacked bounds the experts of all layers of a published model: each has tensors of its own.
const maxStacked = 1 << 18

// stacks returns, for a tensor that files hold in pieces along its first dim, what files call
// each piece; nil for another tensor. The nil function is of a model whose files have its own tensors.
type stacks func(name string) (of func(piece int) string)

// stacker is a model with such tensors.
type stacker interface {
	inFiles(name string) (of func(expert int) string)
}

// stacksOf returns how files hold a model's tensors. The model may be a nil pointer: its type
// decides.
func stacksOf(m any) stacks {
	if s, ok := m.(stacker); ok {
		return s.inFiles
	}
	return nil
}

// expertNames returns what files call the part of each expert: the name of a stack is some path,
// mark and a projection, for which files has their own name.
func expertNames(name, mark string, files map[string]string) (of func(expert int) string) {
	at := strings.LastIndex(name, mark)
	if at < 0 {
		return nil
	}
	own, ok := files[name[at+len(mark):]]
	if !ok {
		return nil
	}
	return func(expert int) string { return fmt.Sprintf("%s%s%d.%s.weight", name[:at], mark, expert, own) }
}

// split returns tensors as files hold them: views of pieces in place of stacks.
func (s stacks) split(tensors nn.NamedTensors) nn.NamedTensors {
	if s == nil {
		return tensors
	}
	var out nn.NamedTensors
	for _, t := range tensors {
		of := s(t.Name)
		if of == nil {
			out = append(out, t)
			continue
		}
		for i := range t.Tensor.Dim(0) {
			out = append(out, nn.NamedTensor{Name: of(i), Tensor: t.Tensor.Select(0, i)})
		}
	}
	return out
}

// FileParts returns parts of a model's state as the files of its family hold them: of stacked
// experts, one part for each expert. Other parts, and those of a model whose files have its
// own tensors, are returned as they are. model is the model or what wraps it. Where ranks hold
// different experts, an expert is away on the ranks that lack it.
func FileParts(model any, parts []checkpoint.Part) ([]checkpoint.Part, error) {
	for _, m := range nn.Modules(model) {
		if s := stacksOf(m); s != nil {
			return s.parts(parts)
		}
	}
	return parts, nil
}

func (s stacks) parts(parts []checkpoint.Part) ([]checkpoint.Part, error) {
	if s == nil {
		return parts, nil
	}
	var out []checkpoint.Part
	for _, p := range parts {
		of := s(p.Name)
		if of == nil {
			out = append(out, p)
			continue
		}
		pieces, err := pieces(p, of)
		if err != nil {
			return nil, fmt.Errorf("models: the parts of %s: %w", p.Name, err)
		}
		out = append(out, pieces...)
	}
	return out, nil
}

// pieces cuts a part along the first dim of its tensor.
func pieces(p checkpoint.Part, of func(int) string) ([]checkpoint.Part, error) {
	if p.Mesh == nil {
		var out []checkpoint.Part
		for i := range p.Local.Dim(0) {
			out = append(out, checkpoint.Part{Name: of(i), Tensor: mesh.Tensor{Local: p.Local.Select(0, i)}, Away: p.Away, Frozen: p.Frozen})
		}
		return out, nil
	}
	layout := mesh.Layout{Mesh: p.Mesh, Shape: p.Shape[1:], Placements: slices.Clone(p.Placements)}
	for i, pl := range p.Placements {
		if dim, ok := pl.IsShard(); ok && dim == 0 {
			layout.Placements[i] = mesh.Replicate()
		} else if ok {
			layout.Placements[i] = mesh.StridedShard(dim-1, pl.NumPieces())
		}
	}
	at := make(map[int]int) // where a piece is in the local tensor
	if !p.Away {
		boxes, err := p.Boxes()
		if err != nil {
			return nil, err
		}
		for _, b := range boxes {
			for k := range b.Shape[0] {
				at[b.Start[0]+k] = b.LocalStart[0] + k
			}
		}
	}
	var out []checkpoint.Part
	for i := range p.Shape[0] {
		piece := checkpoint.Part{Name: of(i), Tensor: mesh.Tensor{Local: p.Local, Layout: layout}, Away: true, Frozen: p.Frozen}
		if k, here := at[i]; here {
			piece.Local, piece.Away = p.Local.Select(0, k), false
		}
		out = append(out, piece)
	}
	return out, nil
}

// maxPieces bounds what a forged file makes of few bytes. A model of maxStacked experts has three
// for each.
const maxPieces = 3 * maxStacked

// unfused shows the fused layout of experts, which some programs write, as tensors of one expert
// each: gate_up_proj [experts, 2·hidden, width] and down_proj [experts, width, hidden] without
// ".weight" behind them, as classes of transformers 5 hold them. All other tensors stay.
func unfused(src checkpoint.Source) checkpoint.Source {
	u := &unfusedSource{Source: src, at: make(map[string]piece)}
	for _, info := range src.Infos() {
		prefix, fused, ok := strings.Cut(info.Name, ".mlp.experts.")
		isFused := ok && (fused == "gate_up_proj" || fused == "down_proj") && len(info.Shape) == 3 && info.DType.NumBits()%8 == 0
		if !isFused || info.Shape[1]*info.Shape[2] == 0 || 2*info.Shape[0] > maxPieces-len(u.at) {
			u.infos = append(u.infos, info)
			continue
		}
		names := []string{"down_proj"}
		if fused == "gate_up_proj" {
			names = []string{"gate_proj", "up_proj"}
		}
		rows := info.Shape[1] / len(names)
		if rows*len(names) != info.Shape[1] {
			u.infos = append(u.infos, info)
			continue
		}
		size := int64(rows) * int64(info.Shape[2]) * int64(info.DType.NumBits()/8)
		for expert := range info.Shape[0] {
			for half, name := range names {
				one := info
				one.Name, one.Shape = fmt.Sprintf("%s.mlp.experts.%d.%s.weight", prefix, expert, name), []int{rows, info.Shape[2]}
				u.infos = append(u.infos, one)
				u.at[one.Name] = piece{of: info.Name, from: (int64(expert)*int64(len(names)) + int64(half)) * size}
			}
		}
	}
	if len(u.at) == 0 {
		return src
	}
	return u
}

// piece is where a tensor lies in another one.
type piece struct {
	of   string
	from int64 // byte
}

type unfusedSource struct {
	checkpoint.Source
	infos []safetensors.Info
	at    map[string]piece
}

func (u *unfusedSource) Infos() []safetensors.Info { return u.infos }

func (u *unfusedSource) ReadTensor(name string, dst []byte) error {
	if p, ok := u.at[name]; ok {
		return u.Source.ReadRange(p.of, dst, p.from)
	}
	return u.Source.ReadTensor(name, dst)
}

func (u *unfusedSource) ReadRange(name string, dst []byte, offset int64) error {
	if p, ok := u.at[name]; ok {
		return u.Source.ReadRange(p.of, dst, p.from+offset)
	}
	return u.Source.ReadRange(name, dst, offset)
}
