// SPDX-License-Identifier: Apache-2.0

// Package tensor has n-dimensional arrays with automatic differentiation.
//
// # Values
//
// A [Tensor] is a view of a storage: dtype, shape, strides and an offset.
// Operations are methods or functions that run at once and return new
// tensors; views ([Tensor.Reshape], [Tensor.Permute], [Tensor.Narrow], …)
// share the storage of their source. Shapes that do not fit are programming
// errors: operations panic with an [*Error] that carries the operation and all
// shapes; a training step recovers it once, at its border.
//
// # The tape
//
// A [Tape] records what is computed from the leaves that were brought to it
// ([Tape.Watch]), and [Tensor.Backward] walks the record from the loss down.
// There is no mode and no global: a value remembers the tape it was made
// under, and a result belongs to the tape of its operands. Leaves give their
// gradient to a [Leaf], usually an nn.Parameter, as soon as it is final, so
// that communication can begin while the rest is still being computed.
//
// Backward functions are made of the same operations, so a gradient can be
// differentiated again ([Grad] with [CreateGraph]). Fused operations have
// fused backward kernels and fall back to their definition in that case.
// [Tensor.OnGrad] sees a gradient on its way, and [Tape.Recompute] trades the
// memory of a part of the model for running it twice.
//
// # Memory
//
// Data lives outside the Go heap. A value made under a tape belongs to it:
// Backward frees what it has consumed, all but the loss; [Tape.Close] frees
// the rest. Reading a freed value panics with an *Error that says so; call
// [Tensor.Keep] before Backward to take a value out. Values made under no tape
// are freed when the collector finds them unreachable. Nothing needs a Free.
//
// # Concurrency
//
// A tape and its values belong to one goroutine. Tensors without a tape may be
// read by several goroutines as long as none writes.
package tensor
