// SPDX-License-Identifier: Apache-2.0

// Package boxes is the arithmetic of parts of tensors in files: where two boxes overlap,
// whether boxes cover a tensor, and how the elements of a box come from a file into memory
// when both have strides of their own.
//
// A box is a start and a shape, in elements of the whole tensor, as in package mesh. Strides
// are in bytes here. The caller has checked that a box lies within its tensor and that offsets
// do not overflow.
package boxes
