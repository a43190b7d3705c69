// SPDX-License-Identifier: Apache-2.0

// Package kernel has the CPU's kernels: the arithmetic of a training step on slices,
// such as matrix products, convolutions, attention, normalisation, activations,
// losses, reductions, optimizer steps and conversions. It knows nothing of tensors.
// Kernels of another device, such as CUDA, are in that device's package: package
// device (internal/device) says how one is added.
//
// # Mental model
//
// An exported function checks nothing but lengths (by slicing, so that a
// mistake is a Go panic and never a wild write), cuts the work into spans and
// hands them to the thread pool; a span is done by a kernel that was chosen
// once for this processor: AVX-512, AVX2 with FMA, or portable Go. The
// assembly is generated from _asm, every kernel has a portable twin that
// defines it, and the tests hold each variant against a naive oracle in
// float64.
//
// Matrix products are of float32 (Gemm) or of bfloat16 summed in float32
// (GemmBF16, whose operands and result may each be either type). Both are the
// same blocking (gemm_block.go) around different tiles; float32 operands become
// bfloat16 while they are packed. A vector times a matrix, a narrow result and
// small operands have ways of their own (gemm_vector.go, gemm_sums.go).
//
// # Caveats
//
//   - Slices are dense and row-major. The length of the first result decides
//     how many elements are computed; operands must be at least as long.
//   - A result may be the same slice as an operand; partial overlap is not
//     allowed.
//   - Nothing is kept after a call returns, and nothing is allocated but the
//     closure that a loop on several threads needs. Scratch comes from a free
//     list outside the Go heap.
//   - Functions may be called from several goroutines at once. A nil pool, or
//     a small input, means the caller's goroutine alone.
//   - Results do not depend on the number of threads: sums are partitioned by
//     shape. They may differ in the last bits between processors that choose
//     different variants.
//   - Assembly cannot be preempted, so that one call of it stays below about
//     a millisecond; longer work is cut in Go.
//   - NaN goes in and comes out: no kernel hides one, maximum and minimum
//     included.
//   - Numbers of 16 bits are []uint16. Rounding to them is to nearest even and
//     happens once: no sum is ever kept in 16 bits. GemmBF16 may take denormal
//     numbers as zero; the conversions keep them.
//
// # Files
//
//	matrix products     gemm*.go
//	convolution         conv*.go
//	attention           attention*.go
//	norms               norm.go (rows), batchnorm.go, groupnorm.go, channels*.go (what these two are made of), rows_bf16.go
//	elementwise         elementwise.go, activations.go, vector*.go, dropout*.go, transformer*.go (RMS norm, SwiGLU, RoPE)
//	sums and orders     reduce.go, softmax.go, sort.go
//	copies and indices  move.go, transpose*.go, embedding.go, bag.go, segment.go, group_rows.go
//	optimizers          optimizer*.go
//	conversions         convert*.go
//	pixels              image*.go
//	of collectives      collective*.go
//	pooling, recurrent  pool.go, rnn.go
//	dividing the work   threads.go, freelist.go, cpu.go
//
// # Adding an operation on vectors
//
// An operation is an exported function (elementwise.go and its neighbours), a
// field of vectorKernels, its portable twin in vector_portable.go, and a row
// of the test's table. That is enough for a correct one. Where it matters for
// a training step, write its body once in _asm/vector, run go generate, and
// name the two variants in vector_amd64.go.
package kernel
