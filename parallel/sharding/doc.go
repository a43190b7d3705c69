// SPDX-License-Identifier: Apache-2.0

// Package sharding gives each value of a pass a type: how the value lies over the
// axes of a mesh. A wrong or missing reduction then is an error that names the
// module and the axis, before the first step of an optimizer.
//
// # Mental model
//
// A type has one [mesh.Placement] for each axis of the mesh. Replicate: the ranks of
// the axis have one value. Shard(dim): each rank has a part of it. Partial(op): the
// value is the reduction of what the ranks have, which has not taken place. Varying:
// each rank has a value of its own, such as the activations of its samples.
//
// A strategy attaches a [Pass] to the tape of its first training pass ([Begin]) and
// says how parameters lie ([Pass.Param]). The Pass is the observer of the tape. It
// knows one rule for each operation of package tensor, and computes the type of each
// result from those of the operands:
//
//   - Of replicated operands the result is replicated.
//   - With a varying operand the result is varying.
//   - A linear operation keeps partial: a sum of two partial values, a product of a
//     partial and a replicated one, a reshaped or converted one.
//   - What is not linear in a partial operand is an error. Partial with replicated
//     is an error in a sum: the replicated operand would be added once by each rank.
//   - A shard keeps its dim in elementwise operations and moves with views. A sum over
//     the sharded dim is partial. An operation that needs the whole dim is an error.
//   - A shard beside a varying operand is an error. That is what happens to a
//     parameter that should have been gathered.
//
// An operation that the package does not know (tensor.Record) counts as one that is
// not linear and needs its operands whole.
//
// A wrapper whose module communicates says what the module takes and gives:
// [Pass.Take] and [Pass.Give]. The rules of tensor are for what is between.
//
// # Gradients
//
// When the backward pass begins, the Pass walks the operations back from the loss and
// computes what each gradient owes. A replicated value that meets a varying one or a
// shard gets only this rank's part of its gradient, so the gradient is Partial(sum).
// A gradient that is partial on one way and whole on another has no type: that is the
// error of a reduction that would count one way too often. The gradient of each
// parameter must owe exactly what the strategy pays off ([Parameter]).
//
// # Axes
//
// On an axis of data ([Axis].Data) each rank has samples of its own. A value of which
// nothing is known, such as an input or a mask, is varying there. The loss counts as
// this rank's share of the sum over the ranks, because DDP and FSDP scale it so. On
// other axes all ranks have the same samples: unknown values are replicated, and the
// loss must be replicated.
//
// # Cost
//
// The check runs in the first training pass of a strategy alone. It reads no element
// of a tensor and does not communicate. docs/sharding-types.md shows the errors and
// how a wrapper gets a type.
//
// # Files
//
//	pass.go       Pass: the observer of a tape, and what strategies and wrappers say
//	rule.go       how the placement of a result follows from those of the operands
//	operations.go the rule of each operation of package tensor
//	dims.go       where views and reductions move a sharded dim
//	gradient.go   what gradients owe
package sharding
