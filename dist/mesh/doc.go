// SPDX-License-Identifier: Apache-2.0

// Package mesh arranges ranks in a grid with named axes, and says which part of a tensor
// each rank holds.
//
// # Mental model
//
// A [Mesh] is a grid of ranks, such as replicate 2 × fsdp 4. Each axis has a name and a size.
// A rank has a coordinate on each axis. The ranks that differ only on one axis form the group
// of this axis, and [Mesh.Group] returns it. Printing a mesh shows where each rank is.
//
// A [Layout] says how a tensor is spread over a mesh: the global shape, the mesh, and one
// [Placement] for each axis of the mesh.
//
//	Replicate()           the ranks of the axis hold the same values
//	Shard(d)              the axis cuts dim d into chunks; each rank holds one chunk
//	StridedShard(d, s)    like Shard(d), but dim d is cut into s pieces before the axis cuts it
//	Partial(op)           the value is the reduction of the ranks' values, which is still owed
//	Varying()             each rank has a value of its own
//
// A [Tensor] is this rank's part of a tensor together with its layout. The placements are the
// sharding type of the value: they say what each axis still owes. [Boxes] is the one function
// that computes offsets. Whoever asks where a part of a tensor lies, asks it.
//
// # Cuts
//
// A dim of n elements that k ranks cut has chunks of c = ⌈n/k⌉ elements: rank r holds the
// elements from c·r up to c·(r+1), as far as there are any. So the last ranks may hold fewer
// elements, or none. This is the rule of torch.chunk.
//
// If several axes cut the same dim, the first axis of the mesh cuts first, and each later axis
// cuts the chunk that it finds. [StridedShard] changes the order: StridedShard(d, s) on an axis
// means that later axes have already cut dim d into s pieces. A mesh dp 2 × tp 2 with
// StridedShard(0, 2), Shard(0) cuts 8 rows first by tp and then by dp:
//
//	dp 0 tp 0: rows 0 1     dp 0 tp 1: rows 4 5
//	dp 1 tp 0: rows 2 3     dp 1 tp 1: rows 6 7
//
// If no later axis makes the pieces, a rank holds its part of each of the s pieces, one after
// the other: StridedShard(0, 2), Replicate() gives dp 0 the rows 0 1 4 5. Every element has an
// owner at all sizes, also at those that s does not divide.
//
// # Operations
//
// There are no operations on sharded tensors. Modules are made parallel, not operators: package
// parallel decides where a module needs which placement. [Tensor] has no methods for arithmetic;
// compute with Tensor.Local, and state the layout of the result.
//
// # Where things are
//
//   - mesh.go: the [Mesh], its axes and groups.
//   - nodes.go: a mesh that follows the nodes of the ranks.
//   - submesh.go: a mesh of some axes, and several axes as one.
//   - picture.go: who is where, and who holds what.
//   - placement.go: the [Placement] of a tensor on one axis.
//   - layout.go: the [Layout], [Boxes] and [LocalShape].
//   - tensor.go: the [Tensor].
//   - distribute.go: a tensor from one rank, from all ranks, or from parts.
//   - plan.go: the steps from one layout to another, chosen by the bytes that they send.
//   - redistribute.go, stretch.go: the steps themselves, and what they copy.
//
// # Caveats
//
// A Mesh does not change after it was made, and goroutines may share it. Its groups are groups
// of package dist: the ranks of a group make the same calls in the same order. A Layout shares
// its slices with whoever made it, and nobody writes to them. The zero Mesh has no ranks and
// cannot be used. The zero Layout has no mesh: it stands for a value that is not spread.
package mesh
