// SPDX-License-Identifier: Apache-2.0

package tensor

// Empty returns a tensor on the CPU whose elements are not set: for a reader that
// fills it by [Tensor.Buffer]. What is in it before is some earlier value's.
func Empty(dtype DType, shape ...int) *Tensor { return alloc(nil, CPU(), dtype, shape, false) }
