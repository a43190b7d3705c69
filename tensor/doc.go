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
// # Dtypes
//
// Operands of two dtypes meet as in PyTorch ([PromoteTypes]); a plain number
// takes the tensor's, where it can. What has sixteen bits is computed in float32
// and rounded once; losses of it stay float32. Division and the functions of real
// numbers turn integers into float32, sums and products turn them into int64,
// comparisons give bool. Integers have no gradient.
//
// # The tape
//
// A [Tape] records what is computed from the leaves that were brought to it
// ([Tape.Watch]), and [Tensor.Backward] walks the record from the loss down.
// There is no mode and no global: a value remembers the tape it was made
// under, and a result belongs to the tape of its operands. Leaves give their
// gradient to a [Leaf], usually an nn.Parameter, as soon as it is final, so
// that communication can begin while the rest is still being computed. To take
// the gradient with respect to an input, bring it to the tape by [Tape.Leaf].
//
// Backward functions are made of the same operations, so a gradient can be
// differentiated again, as often as wanted ([Tensor.Grad] with [CreateGraph]).
// Fused operations have fused backward kernels and fall back to their definition
// in that case. There is no gradient of the gradient through
//
//	Tape.Recompute, nn.Recompute     panics with an *Error
//	batch norm over several ranks    Backward and Grad return an error
//	what Record adds                 unless its backward is made of operations
//
// and Floor, Sign and their like have slope 0 at every order.
// [Tensor.OnGrad] sees a gradient on its way, and [Tape.Recompute] trades the
// memory of a part of the model for running it twice.
//
// # Dtypes and autocast
//
// Operands of different dtypes meet as in PyTorch ([PromoteTypes]): float32 and
// bfloat16 give float32. Whatever has elements of sixteen bits is computed in
// float32 and rounded once, to nearest even; only products are of bfloat16
// numbers, with sums in float32, by the processor's AVX512_BF16 where it has it.
//
// Under autocast ([Tape.SetAutocast], nn.WithAutocast) operations compute as
// PyTorch's do under torch.autocast("cpu"):
//
//	MatMul, Linear, Affine, Einsum,    round operands of float32 as they pack them,
//	convolutions, attention            and return bfloat16
//	CrossEntropy, MSE, other losses    return float32, of whatever operands
//	LayerNorm, RMSNorm, Softmax,       return their input's dtype; statistics and
//	activations, sums, means, RoPE,    sums are float32
//	batch and group norm, pooling
//	LSTM, GRU                          return float32, where PyTorch returns bfloat16
//	                                   if the input is, and from an LSTM always
//	Add, Mul, Cat and the like         return the wider operand's dtype
//	Embedding                          returns the table's dtype
//
// A gradient has the dtype of the value it belongs to. Parameters stay float32,
// and their gradients are summed in float32 and never rounded to less: those of
// weights come straight out of a product, those of biases out of a sum. The
// gradient of a float32 operand of a product is not rounded either, where PyTorch
// rounds it to bfloat16 and widens it again. In attention the scores and the
// softmax are float32; the weights are rounded for the second product.
//
// Without autocast the operands of a product must agree.
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
