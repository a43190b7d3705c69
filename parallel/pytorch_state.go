// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// stateBucketBytes is the size at which PyTorch cuts what it broadcasts of a
// model's state.
const stateBucketBytes = 250 << 20

// inPyTorchOrder sorts what modules hold as named_parameters and named_buffers
// do: a module's own entries come before those of its children, whichever field
// comes first.
func inPyTorchOrder[T any](entries []T, name func(T) string) []T {
	type module struct {
		own      []T
		children []*module
		byName   map[string]*module
	}
	root := &module{byName: map[string]*module{}}
	for _, e := range entries {
		at := root
		path := strings.Split(name(e), ".")
		for _, part := range path[:len(path)-1] {
			child := at.byName[part]
			if child == nil {
				child = &module{byName: map[string]*module{}}
				at.byName[part] = child
				at.children = append(at.children, child)
			}
			at = child
		}
		at.own = append(at.own, e)
	}
	sorted := make([]T, 0, len(entries))
	var visit func(m *module)
	visit = func(m *module) {
		sorted = append(sorted, m.own...)
		for _, c := range m.children {
			visit(c)
		}
	}
	visit(root)
	return sorted
}

// coalesced is a list of tensors that are broadcast in as few pieces as
// PyTorch does it in.
type coalesced struct {
	names   []string
	tensors []*tensor.Tensor
	runs    [][]int
	flats   []*tensor.Tensor   // nil until they are needed
	pieces  [][]*tensor.Tensor // of the flats, one a tensor
}

func newCoalesced[T any](entries []T, of func(T) (string, *tensor.Tensor)) *coalesced {
	c := &coalesced{}
	var numElems []int
	var dtypes []tensor.DType
	for _, e := range entries {
		name, t := of(e)
		c.names, c.tensors = append(c.names, name), append(c.tensors, t)
		numElems, dtypes = append(numElems, t.NumElems()), append(dtypes, t.DType())
	}
	c.runs = assignBuckets(numElems, dtypes, []int{stateBucketBytes}, nil)
	c.flats, c.pieces = make([]*tensor.Tensor, len(c.runs)), make([][]*tensor.Tensor, len(c.runs))
	return c
}

// broadcast replaces every rank's tensors by those of rank src.
func (c *coalesced) broadcast(ctx context.Context, group *dist.Group, src int) error {
	for i, run := range c.runs {
		if c.flats[i] == nil {
			c.lay(i)
		}
		if group.Rank() == src {
			for j, k := range run {
				c.pieces[i][j].CopyFrom(c.tensors[k])
			}
		}
		if err := group.Broadcast(ctx, c.flats[i], src); err != nil {
			err = fmt.Errorf("ddp: broadcast %d tensors (%s … %s) from rank %d: %w", len(run), c.names[run[0]], c.names[run[len(run)-1]], src, err)
			return c.otherDTypes(i, err)
		}
		if group.Rank() != src {
			for j, k := range run {
				c.tensors[k].CopyFrom(c.pieces[i][j])
			}
		}
	}
	return nil
}

// lay makes the memory of a run.
func (c *coalesced) lay(run int) {
	like := make([]*tensor.Tensor, len(c.runs[run]))
	for j, k := range c.runs[run] {
		like[j] = c.tensors[k]
	}
	c.flats[run], c.pieces[run] = flatten(tensor.New, like)
}

// release gives back the memory between two broadcasts that are far apart.
func (c *coalesced) release() {
	clear(c.flats)
	clear(c.pieces)
}
