// SPDX-License-Identifier: Apache-2.0

// Package tensor has n-dimensional arrays with automatic differentiation.
//
// # Values
//
// A [Tensor] is a view of a storage: a dtype, a shape, strides and an offset. An
// operation is a method or a function. It returns a new tensor. Views
// ([Tensor.Reshape], [Tensor.Permute], [Tensor.Narrow], …) share the storage of their
// source. Shapes that do not fit are programming errors: the operation panics with an
// [*Error] that names the operation and all shapes. A training step recovers the
// panic once, at its border.
//
// # The tape
//
// A [Tape] records what is computed from its leaves ([Tape.Watch]).
// [Tensor.Backward] walks the record from the loss down to the leaves. There is no
// mode and no global: a value remembers the tape that it was made under, and a
// result belongs to the tape of its operands. Each leaf gives its gradient to a
// [Leaf], usually an nn.Parameter, as soon as the gradient is final, so that
// communication can begin while Backward goes on. For the gradient of an input, bring
// the input to the tape by [Tape.Leaf]. [Tensor.OnGrad] sees a gradient on its way.
// [Tape.Recompute] runs a part of the model twice to save memory.
//
// Backward functions are made of operations, so a gradient has a gradient
// ([Tensor.Grad] with [CreateGraph]). A fused operation has a fused backward kernel,
// and uses its definition in recorded operations instead when a graph of the
// backward pass is asked for. There is no gradient of the gradient through
//
//	Tape.Recompute, nn.Recompute     panics with an *Error
//	batch norm over several ranks    Backward and Grad return an error
//	what Record adds                 unless its backward is made of operations
//
// Floor, Sign and the like have slope 0 at every order.
//
// # Dtypes
//
// Operands of two dtypes are converted as in PyTorch ([PromoteTypes]): float32 and
// bfloat16 give float32. A plain number takes the tensor's dtype where it can.
// Division and the functions of real numbers turn integers into float32. Sums and
// products turn them into int64. Comparisons give bool. Integers have no gradient.
// What has elements of sixteen bits is computed in float32 and rounded once, to
// nearest even; losses of it stay float32. Only matrix products multiply bfloat16
// numbers, with sums in float32.
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
// Without autocast the operands of a product must have one dtype. A gradient has the
// dtype of its value. Parameters stay float32. Their gradients are summed in float32
// and never rounded: those of weights come out of a product, those of biases out of a
// sum. The gradient of a float32 operand of a product is not rounded either, where
// PyTorch rounds it to bfloat16 and widens it again. In attention the scores and the
// softmax are float32; the weights are rounded for the second product.
//
// # Devices
//
// A tensor is on a [Device]: [CPU], or [Meta], which knows shapes alone. [On] makes
// tensors on a device, [Tensor.ToDevice] copies one there. The operands of an
// operation are on one device. Memory of Meta remembers how it gets its first values;
// [Materialize] makes them on another device, or a part of them.
//
// A device may compute later than it is asked to. Then these functions wait for it:
// [Tensor.Item], [Tensor.Float32s] and the others that return numbers,
// [Tensor.WithFloat32s], [Tensor.Lend], [Tensor.SumSquares], and operations whose
// result's shape depends on the data ([Tensor.MaskedSelect], [Tensor.NonZero],
// gradients by rows). Nothing else waits, so a training step does not. Kernels check
// indices while they run. On the CPU a bad index panics in the operation. On a device
// that computes later, the next of those functions panics, the next Backward returns
// the error, or [Synchronize] does; the error names the line of the operation.
//
// # Memory
//
// Data lies outside the Go heap. A value made under a tape belongs to the tape:
// Backward frees what it has consumed, all but the loss, and [Tape.Close] frees the
// rest. Reading a freed value panics with an *Error that says so; call [Tensor.Keep]
// before Backward to take a value out. Values made under no tape are freed when the
// collector finds them unreachable. Nothing needs a Free. A wrapper that shards
// parameters gives memory up for a while by [Tensor.Release].
//
// # Files
//
//	values       tensor, storage, free, create, ranges, view, buffer, device, origin, materialize, dtype, promote, generator, error, fault
//	the tape     tape, backward, hook, crossing, recompute, autocast, observer
//	elementwise  elementwise, math, activation, compare, inplace, swiglu, dropout
//	reductions   reduce, extremes, statistics, softmax, cumulative, sort
//	products     matmul, einsum, conv, attention, attention_blocks, rope, rnn
//	norms        layernorm, rmsnorm, groupnorm, batchnorm
//	indices      index, mask, embedding, embeddingbag, rowgrad, groups
//	shapes       shape, join, rearrange, pool
//	losses       loss, crossentropy
//	optimizers   optimizer
//	kernels      fused, which has the recipe for a new operation
//
// # Concurrency
//
// A tape and its values belong to one goroutine. Tensors without a tape may be
// read by several goroutines as long as none writes.
package tensor
