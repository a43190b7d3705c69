// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// Part is what this rank holds of a tensor, with its name in a file. A file always has
// the whole tensor, so it can be loaded on any number of ranks, spread in any way. A
// Part without a mesh is the whole tensor; it needs no Shape.
//
// If only some ranks of the mesh have the tensor, as the ranks of one stage of a pipeline do, all
// ranks list it nevertheless, with its layout on the whole mesh. Away is true on the ranks that
// have nothing of it. Their Local only says what dtype the tensor has: it may be on tensor.Meta.
type Part struct {
	Name string
	mesh.Tensor
	Away bool
}

// Whole returns tensors of which this rank holds everything.
func Whole(tensors Tensors) []Part {
	var parts []Part
	for name, t := range tensors {
		parts = append(parts, Part{Name: name, Tensor: mesh.Tensor{Local: t}})
	}
	return parts
}

// shape returns that of the whole tensor.
func (p Part) shape() []int {
	if p.Mesh == nil {
		return p.Local.Shape()
	}
	return p.Shape
}

// isWhole reports whether a rank that holds something holds everything.
func (p Part) isWhole() bool {
	return p.Mesh == nil || !slices.ContainsFunc(p.Placements, func(pl mesh.Placement) bool { return !pl.IsReplicate() })
}

// check reports a part from which the tensor cannot be put together.
func (p Part) check() error {
	switch {
	case p.Away && p.Mesh == nil:
		return errors.New("is away on this rank, and has no mesh on which it is: give its layout")
	case p.isWhole():
		return nil
	}
	if !p.Mesh.IsMember() {
		return fmt.Errorf("lies on a mesh of the axes %v, and this rank is not in it: leave the tensor out here", p.Mesh.Axes())
	}
	for i, pl := range p.Placements {
		if _, ok := pl.IsShard(); !ok && !pl.IsReplicate() {
			return fmt.Errorf("is %v on the axis %s: reduce it first", pl, p.Mesh.Axes()[i].Name)
		}
	}
	want, err := p.LocalShape()
	if err == nil && !p.Away && !slices.Equal(want, p.Local.Shape()) {
		err = fmt.Errorf("has the shape %v on this rank, and of %v its layout gives it %v", p.Local.Shape(), p.Shape, want)
	}
	return err
}

// WriteParts writes tensors of which the ranks of a mesh hold parts as one safetensors
// file. Every rank of the mesh calls it with the same parts; rank 0 gives the Writer of
// its save, and the other ranks give nil. A tensor is put together on rank 0, written
// and freed before the next one, so rank 0 needs the memory of the largest tensor, and
// the others need none. Replicas send nothing. The tensors must not change until it
// returns. metadata is as in [Writer.WriteTensors].
//
// The ranks compare what they save first: a rank that saves another file or other tensors
// is an error on all of them. Where rank 0 fails, the other ranks wait until it leaves the group, or until the
// group's timeout.
func WriteParts(ctx context.Context, w *Writer, name string, parts []Part, metadata map[string]string) error {
	list, err := describe(name, parts)
	if w != nil {
		return w.writeParts(ctx, name, list, err, metadata)
	}
	var held holders
	if err == nil {
		held, err = compareParts(ctx, name, list)
	}
	if err != nil {
		return err
	}
	infos, err := safetensors.Ordered(infosOf(list))
	if err != nil {
		return err
	}
	named := byName(list)
	for _, info := range infos {
		if _, err := named[info.Name].gather(ctx, held); err != nil {
			return fmt.Errorf("checkpoint: %s: tensor %q: %w", name, info.Name, err)
		}
	}
	return nil
}

// writeParts is WriteParts on rank 0, of what describe has returned.
func (w *Writer) writeParts(ctx context.Context, name string, list []Part, err error, metadata map[string]string) error {
	var held holders
	if err == nil {
		held, err = compareParts(ctx, name, list)
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fail("encode", name, err)
	}
	named := byName(list)
	var last *tensor.Tensor // made for its bytes, which are being written
	free := func() {
		if last != nil {
			last.Free()
			last = nil
		}
	}
	defer free()
	data := func(info safetensors.Info) ([]byte, error) {
		free()
		p := named[info.Name]
		t, err := p.gather(ctx, held)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", info.Name, err)
		}
		dense := onHost(t)
		if dense != p.Local {
			last = dense
		}
		return dense.Buffer().Data, nil
	}
	return w.writeSafetensors(name, metadata, func(f *File, metadata map[string]string) error {
		return safetensors.WriteEach(f, infosOf(list), metadata, data)
	})
}

// holders says for each tensor, by name, which ranks have it; a tensor that all ranks have is
// not there.
type holders map[string][]bool

// compareParts makes sure that all ranks of a mesh save the same file, and finds out who has
// what. What ranks send to rank 0 has no names, so that a rank that saves another file, such as
// the optimizer's state, would give its tensors for the model's.
func compareParts(ctx context.Context, name string, list []Part) (holders, error) {
	i := slices.IndexFunc(list, func(p Part) bool { return p.Mesh != nil })
	if i < 0 {
		return nil, nil
	}
	sum, numAway := fnv.New64a(), 0
	fmt.Fprintf(sum, "%q", name)
	for _, p := range list {
		fmt.Fprintf(sum, " %q %v %v", p.Name, p.Local.DType(), p.shape())
		if p.Away {
			numAway++
		}
	}
	group := list[i].Mesh.World()
	gather := func(mine []int64) ([]int64, error) {
		all := tensor.New(tensor.CPU(), tensor.Int64, group.Size(), len(mine))
		if err := group.AllGather(ctx, all, tensor.FromInt64(mine)); err != nil {
			return nil, fmt.Errorf("checkpoint: %s: compare what the ranks save: %w", name, err)
		}
		return all.Int64s(), nil
	}
	const numbers = 3
	of, err := gather([]int64{int64(sum.Sum64()), int64(len(list)), int64(numAway)})
	if err != nil {
		return nil, err
	}
	isAway := false
	for rank := range group.Size() {
		other := of[rank*numbers:][:numbers]
		if !slices.Equal(other[:2], of[:2]) {
			return nil, fmt.Errorf("checkpoint: %s: rank %d saves another file or other tensors (%d of them) than rank 0 (%d): save the same on all ranks", name, rank, other[1], of[1])
		}
		isAway = isAway || other[2] > 0
	}
	if !isAway {
		return nil, nil
	}
	mine := make([]int64, len(list))
	for i, p := range list {
		if !p.Away {
			mine[i] = 1
		}
	}
	all, err := gather(mine)
	if err != nil {
		return nil, err
	}
	held := holders{}
	for i, p := range list {
		has := make([]bool, group.Size())
		for rank := range has {
			has[rank] = all[rank*len(list)+i] == 1
		}
		switch {
		case !slices.Contains(has, true):
			return nil, fmt.Errorf("checkpoint: %s: tensor %q is away on all ranks: one of them must have it", name, p.Name)
		case slices.Contains(has, false):
			held[p.Name] = has
		}
	}
	return held, nil
}

// onHost returns a tensor whose elements lie densely where the CPU sees them: t itself
// or a copy.
func onHost(t *tensor.Tensor) *tensor.Tensor {
	dense := t
	if !t.IsContiguous() {
		dense = t.Detach().Contiguous()
	}
	if dev := dense.Device(); !tensor.CPUSees(dev) {
		dense = dense.ToDevice(tensor.CPU())
	}
	return dense
}

// gather puts a tensor together on rank 0 of its mesh; it returns nil on the others. Of
// the ranks that hold the same boxes the first one sends them.
func (p Part) gather(ctx context.Context, held holders) (*tensor.Tensor, error) {
	has := held[p.Name]
	if p.isWhole() && (has == nil || has[0]) {
		return p.Local, nil
	}
	group, me := p.Mesh.World(), p.Mesh.Rank()
	var whole *tensor.Tensor
	if me == 0 {
		whole = tensor.Empty(p.Local.DType(), p.Shape...)
	}
	seen := make(map[string]bool)
	for rank := range p.Mesh.Size() {
		if has != nil && !has[rank] {
			continue
		}
		boxes, err := p.BoxesOf(rank)
		if err != nil {
			return nil, err
		}
		if key := fmt.Sprint(boxes); len(boxes) == 0 || seen[key] {
			continue
		} else {
			seen[key] = true
		}
		switch {
		case me == 0 && rank == 0:
			place(whole, onHost(p.Local), boxes)
		case me == 0:
			if err := p.receive(ctx, whole, boxes, rank); err != nil {
				return nil, err
			}
		case me == rank:
			if err := group.Send(ctx, onHost(p.Local), 0); err != nil {
				return nil, err
			}
		}
	}
	return whole, nil
}

// receive puts what a rank sends into a whole tensor.
func (p Part) receive(ctx context.Context, whole *tensor.Tensor, boxes []mesh.Box, rank int) error {
	b, group := boxes[0], p.Mesh.World()
	if len(boxes) == 1 && len(b.Shape) > 0 && slices.Equal(b.Shape[1:], whole.Shape()[1:]) {
		return group.Recv(ctx, whole.Narrow(0, b.Start[0], b.Shape[0]), rank)
	}
	at, err := p.Mesh.CoordinateOf(rank)
	if err != nil {
		return err
	}
	local, err := mesh.LocalShape(p.Shape, p.Mesh.Shape(), p.Placements, at)
	if err != nil {
		return err
	}
	t := tensor.Empty(whole.DType(), local...)
	defer t.Free()
	if err := group.Recv(ctx, t, rank); err != nil {
		return err
	}
	place(whole, t, boxes)
	return nil
}

// place copies the boxes of a local tensor into the whole one.
func place(whole, local *tensor.Tensor, boxes []mesh.Box) {
	for _, b := range boxes {
		into, from := whole, local
		for d := range b.Shape {
			into, from = into.Narrow(d, b.Start[d], b.Shape[d]), from.Narrow(d, b.LocalStart[d], b.Shape[d])
		}
		into.CopyFrom(from)
	}
}

// LoadParts fills this rank's parts of tensors, in place, from a file of the checkpoint,
// and reads nothing but these. Each rank calls it for itself. The errors are those of
// [Checkpoint.LoadTensors].
func (c *Checkpoint) LoadParts(name string, parts []Part, opts ...LoadOption) error {
	f, err := c.OpenSafetensors(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return LoadParts(f, parts, opts...)
}

// maxRead is how much is read at a time of boxes that lie scattered in a file.
const maxRead = 1 << 20

// read reads the bytes of this rank's boxes of a tensor into dst, which is dense and has
// the part's shape.
func (p Part) read(f Source, dst []byte, size int) error {
	if p.isWhole() {
		return f.ReadTensor(p.Name, dst)
	}
	boxes, err := p.Boxes()
	if err != nil {
		return err
	}
	var scratch []byte
	for _, b := range boxes {
		runs := runsOf(b, p.Shape, p.Local.Shape(), size)
		for i := 0; i < len(runs); {
			// As many of the next runs as one read holds.
			first, end := runs[i], i+1
			for end < len(runs) && runs[end].from+runs[end].size-first.from <= maxRead {
				end++
			}
			if end == i+1 {
				if err := f.ReadRange(p.Name, dst[first.to:first.to+first.size], int64(first.from)); err != nil {
					return err
				}
				i = end
				continue
			}
			span := runs[end-1].from + runs[end-1].size - first.from
			scratch = slices.Grow(scratch[:0], span)[:span]
			if err := f.ReadRange(p.Name, scratch, int64(first.from)); err != nil {
				return err
			}
			for _, r := range runs[i:end] {
				copy(dst[r.to:r.to+r.size], scratch[r.from-first.from:])
			}
			i = end
		}
	}
	return nil
}

// run is a stretch of bytes that is dense in the whole tensor and in the local one.
type run struct{ from, to, size int }

// runsOf returns the runs of a box, in the order of the file. size is that of an element.
func runsOf(b mesh.Box, whole, local []int, size int) []run {
	// The dims from last on are whole in the box on both sides, so a run goes over them.
	last, length := len(whole), size
	for last > 0 && b.Shape[last-1] == whole[last-1] && b.Shape[last-1] == local[last-1] {
		last--
		length *= whole[last]
	}
	if last > 0 {
		last--
		inner := length
		length *= b.Shape[last]
		strides := func(shape []int) []int {
			s := make([]int, last+1)
			for d, n := last, inner; d >= 0; d-- {
				s[d] = n
				n *= shape[d]
			}
			return s
		}
		from, to, count := strides(whole), strides(local), 1
		for d := range last {
			count *= b.Shape[d]
		}
		runs := make([]run, count)
		for i := range runs {
			r := run{b.Start[last] * from[last], b.LocalStart[last] * to[last], length}
			for d, at := last-1, i; d >= 0; d-- {
				k := at % b.Shape[d]
				at /= b.Shape[d]
				r.from += (b.Start[d] + k) * from[d]
				r.to += (b.LocalStart[d] + k) * to[d]
			}
			runs[i] = r
		}
		return runs
	}
	return []run{{0, 0, length}}
}

func byName(list []Part) map[string]Part {
	named := make(map[string]Part, len(list))
	for _, p := range list {
		named[p.Name] = p
	}
	return named
}
