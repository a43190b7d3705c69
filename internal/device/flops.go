// SPDX-License-Identifier: Apache-2.0

package device

// FLOPs returns how many additions and multiplications of floating-point numbers an operation with
// arguments args does in its products: those of matrices, convolutions and attention, which are nearly
// all of a model. Other operations are 0. Of an attention the pairs of a query and a key that its causal
// mask leaves are counted. A gradient counts what its definition asks for: that a kernel computes
// probabilities a second time does not count. The elements of counts of groups are read, so their
// memory must be the host's.
func FLOPs(op Op, args []Array) int64 {
	switch op := op.(type) {
	case Attention:
		return 2 * pairs(op.AttentionParams, args[2], args[3])
	case AttentionGrad:
		return 4 * pairs(op.AttentionParams, args[6], args[7])
	case Conv2d:
		return op.Shape.flops()
	case Conv2dInputGrad:
		return op.Shape.flops()
	case Conv2dWeightGrad:
		return op.Shape.flops()
	case GroupedProduct:
		return 2 * groupRows(args[4], args[1].Shape[0]) * int64(args[0].Shape[1]) * int64(args[1].Shape[1])
	case GroupedWeightGrad:
		return 2 * groupRows(args[3], args[1].Shape[0]) * int64(args[0].Shape[1]) * int64(args[0].Shape[2])
	}
	return 0
}

// MatMulFLOPs returns those of [Kernels].MatMul.
func MatMulFLOPs(dst, a Array) int64 {
	return 2 * int64(dst.NumElems()) * int64(a.Shape[len(a.Shape)-1])
}

// pairs returns the operations of one product of all queries with the keys that they see.
func pairs(p AttentionParams, q, k Array) int64 {
	time, keyTime := int64(q.Shape[1]), int64(k.Shape[1])
	seen := time * keyTime
	if p.Causal {
		// Query t sees max(0, t + 1 + keyTime - time) keys: the last sees all.
		n := min(time, keyTime)
		seen = n*keyTime - n*(n-1)/2
	}
	return 2 * int64(q.Shape[0]) * int64(q.Shape[2]) * int64(q.Shape[3]) * seen
}

// flops is the same for a convolution and both of its gradients.
func (s Conv2dShape) flops() int64 {
	out := int64(s.Batch) * int64(s.Out) * int64(s.OutHeight()) * int64(s.OutWidth())
	return 2 * out * int64(s.In/max(1, s.Groups)) * int64(s.KernelH) * int64(s.KernelW)
}

// groupRows returns how many rows the groups have: counts may be wrong, which the kernel notes.
func groupRows(counts Array, rows int) (sum int64) {
	for _, n := range counts.Int64s() {
		sum += max(0, min(n, int64(rows)-sum))
	}
	return sum
}
