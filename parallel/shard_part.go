// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// WithinGroupsOf gives full values up after the call in the forward pass, but for a part: groups
// of size neighbours on the axis fsdp keep a copy of the values among themselves, so that the
// backward pass gathers within these groups alone. Where neighbours are on one node, the gathers
// of the backward pass stay inside of it. The parts take 1/size of the memory of all units, in
// the dtype in which they are gathered. It is taken in the first pass, and stays.
//
// The size must divide the number of ranks on the axis. A size of 1 is [Never], and one of all
// ranks is [Always].
func WithinGroupsOf(size int) Reshard {
	if size < 1 {
		return Reshard(size - 1) // which FullyShard refuses
	}
	return Reshard(size)
}

func (r Reshard) String() string {
	switch {
	case r == Always:
		return "always"
	case r == Never:
		return "never"
	case r < 0:
		r++
	}
	return fmt.Sprintf("within groups of %d", int(r))
}

// A part is what a rank keeps of the full values of a unit between the forward and the backward
// pass, if the model is resharded within groups of k ranks:
//
//	base  [N·c, …]    the chunks of all N ranks
//	part  [N/k·c, …]  those of the N/k ranks that have them in a division among k
//
// It belongs to the pass that has kept it: since then, an optimizer may have stepped, so that
// other passes gather from the shards.

// formGroups makes the group of neighbours within which this rank keeps parts.
func (f *FSDP) formGroups(ctx context.Context, r Reshard) (err error) {
	k, n := int(r), f.shards.Size()
	if k <= 1 || k == n {
		return nil
	}
	ranks := make([]int, k)
	for i := range ranks {
		ranks[i] = f.shards.Rank()/k*k + i
	}
	f.near, err = mesh.Over(ctx, f.shards, ranks, mesh.Axis{Name: shardAxis, Size: k})
	return err
}

// checkReshard says why full values cannot be given up so.
func (f *FSDP) checkReshard(r Reshard) error {
	k, n := int(r), f.shards.Size()
	switch {
	case k < 0:
		return fmt.Errorf("WithReshard(WithinGroupsOf(%d)): a group has at least 1 rank", k+1)
	case k > 1 && n%k != 0:
		return fmt.Errorf("WithReshard(WithinGroupsOf(%d)): axis %s has %d ranks, which groups of %d do not divide: choose a size that divides %d", k, shardAxis, n, k, n)
	}
	return nil
}

// keepPart keeps a part of the full values, which are about to be given up, for the backward pass.
func (p *shardPass) keepPart(u *shardUnit) {
	f := p.f
	if f.near == nil || !u.here || u.holds > 1 || u.partOf == p || len(u.params) == 0 {
		return
	}
	numChunks := f.shards.Size() / f.near.Size()
	if u.params[0].part == nil {
		for s, part := range layOut(u.params, numChunks, fullDType, f.partMemory()) {
			s.part = part
			s.part.SetName(s.name)
		}
	}
	for _, s := range u.params {
		n := s.chunkShape[s.dim] * numChunks
		s.part.CopyFrom(s.base.Narrow(s.dim, f.near.Rank()*n, n))
	}
	u.partOf = p
}

// partMemory makes memory that the neighbours read in place where they can.
func (f *FSDP) partMemory() func(tensor.Device, tensor.DType, ...int) *tensor.Tensor {
	return func(device tensor.Device, d tensor.DType, shape ...int) *tensor.Tensor {
		f.plan.keep(numElemsOf(shape) * d.Size())
		return memoryFor(f.near.World())(device, d, shape...)
	}
}

// order begins to gather a unit for the pass: from the parts that it has kept, or from the shards.
func (p *shardPass) order(ctx context.Context, u *shardUnit) error {
	if u.coming != nil && u.source != nil && u.source != p {
		u.settle(ctx) // another pass has ordered its own part
	}
	if u.here || u.coming != nil {
		return nil
	}
	u.source = nil
	if u.partOf == p {
		u.source = p
	}
	return u.gather(ctx)
}

// forgetPart ends what the pass keeps of a unit.
func (p *shardPass) forgetPart(u *shardUnit) {
	if u.partOf == p {
		u.partOf = nil
	}
}

// toGather returns what this rank brings to a gather of the unit.
func (u *shardUnit) toGather(s *shardParam) mesh.Tensor {
	if u.source != nil {
		return mesh.Tensor{Local: s.part, Layout: mesh.Layout{Mesh: u.f.near, Shape: s.padded, Placements: []mesh.Placement{mesh.Shard(s.dim)}}}
	}
	return mesh.Tensor{Local: s.toSend(), Layout: mesh.Layout{Mesh: s.mesh, Shape: s.padded, Placements: s.sharded}}
}

// gathered takes what has come of a parameter: it must be whole.
func (s *shardParam) gathered(t mesh.Tensor) error {
	if t.Mesh != s.unit.f.near || t.Mesh == nil {
		s.at = t.Placements
		return t.Expect(s.whole...)
	}
	if err := t.Expect(mesh.Replicate()); err != nil {
		return err
	}
	s.at = slices.Clone(s.whole) // the groups keep the same values
	return nil
}
