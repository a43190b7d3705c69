// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/dist/mesh"
)

// cutBy are the axes of which it is known what they cut in any model.
var cutBy = map[string]mesh.Placement{
	"replicate": mesh.Replicate(), "fsdp": mesh.Shard(0),
}

// LayoutOn returns the layout of an input's tensors on another mesh. An axis cuts as it does in
// the input; see cutBy for axes that the input does not have.
func LayoutOn(in *Input, axes []checkpoint.Axis) (checkpoint.Rewriting, error) {
	r := checkpoint.Rewriting{Mesh: axes}
	var m *checkpoint.Manifest
	if in.Checkpoint != nil {
		m = in.Checkpoint.Manifest()
	}
	was := make([]int, len(axes)) // the number of the axis in the input, -1 for none
	for i, a := range axes {
		was[i] = -1
		if m != nil {
			for j, old := range m.Mesh {
				if old.Name == a.Name {
					was[i] = j
				}
			}
		}
		if _, known := cutBy[a.Name]; was[i] < 0 && !known && a.Size > 1 {
			return r, fmt.Errorf("%s was not saved on a mesh with the axis %s, so it is not known what the axis cuts: reshard on fsdp, or load it in a job with this axis, which every job does by itself", in.Where, a.Name)
		}
	}
	type key struct{ section, tensor string }
	stored := map[key][]string{}
	if m != nil {
		for _, s := range m.Sections {
			for _, t := range s.Tensors {
				stored[key{s.Name, t.Name}] = t.Placements
			}
		}
	}
	r.Place = func(section string, info safetensors.Info) ([]mesh.Placement, error) {
		list := make([]mesh.Placement, len(axes))
		old := stored[key{section, info.Name}]
		for i, a := range axes {
			p, err := cutBy[a.Name], error(nil)
			if was[i] >= 0 {
				p = mesh.Replicate()
				if was[i] < len(old) {
					p, err = parsePlacement(old[was[i]])
				}
			}
			if err != nil {
				return nil, err
			}
			if dim, ok := p.IsShard(); ok && dim >= len(info.Shape) {
				p = mesh.Replicate() // a scalar cannot be cut
			}
			list[i] = p
		}
		return restride(list, axes), nil
	}
	return r, nil
}

// restride gives strides to shards of a dim that a later axis has cut before: the outer axes of
// a composition cut what the inner ones leave.
func restride(list []mesh.Placement, axes []checkpoint.Axis) []mesh.Placement {
	for i, p := range list {
		dim, ok := p.IsShard()
		if !ok {
			continue
		}
		pieces := 1
		for j := i + 1; j < len(list); j++ {
			if d, ok := list[j].IsShard(); ok && d == dim {
				pieces *= axes[j].Size
			}
		}
		list[i] = mesh.Shard(dim)
		if pieces > 1 {
			list[i] = mesh.StridedShard(dim, pieces)
		}
	}
	return list
}

// parsePlacement is the inverse of [mesh.Placement.String], for what a checkpoint can have.
func parsePlacement(text string) (mesh.Placement, error) {
	var dim, pieces int
	switch {
	case text == "Replicate":
		return mesh.Replicate(), nil
	case strings.HasPrefix(text, "Shard("):
		if _, err := fmt.Sscanf(text, "Shard(%d)", &dim); err == nil && dim >= 0 {
			return mesh.Shard(dim), nil
		}
	case strings.HasPrefix(text, "StridedShard("):
		if _, err := fmt.Sscanf(text, "StridedShard(%d, %d)", &dim, &pieces); err == nil && dim >= 0 && pieces >= 1 {
			return mesh.StridedShard(dim, pieces), nil
		}
	}
	return mesh.Placement{}, fmt.Errorf("the placement %q is none that a tensor can be cut by", text)
}
