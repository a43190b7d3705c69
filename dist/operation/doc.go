// SPDX-License-Identifier: Apache-2.0

// Package operation names what ranks ask of each other. A [Call] is one operation ([Op],
// such as all_reduce) on elements of one type ([DType]), and for the operations that
// reduce it has a reduction ([ReduceOp]). Errors of package fault carry the calls of
// ranks, so that they can say what differs between two of them.
//
// Programs make no calls themselves: the methods of dist.Group do. They use the
// reductions by their names in package dist, such as dist.Sum.
//
// The numbers of operations, types and reductions travel between ranks. Nothing here
// waits, sends or keeps anything.
package operation
