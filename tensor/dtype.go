// SPDX-License-Identifier: Apache-2.0

package tensor

import "github.com/cohort-ml/cohort/internal/device"

// DType is the type of a tensor's elements.
type DType = device.DType

// The element types. Computation is in float32; int64 is for indices.
const (
	Float32 = device.Float32
	Int64   = device.Int64
)
