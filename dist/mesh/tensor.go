// SPDX-License-Identifier: Apache-2.0

package mesh

import "github.com/cohort-ml/cohort/tensor"

// Tensor is this rank's part of a tensor that is spread over a mesh: Local holds the values, and
// the layout is the type of the whole. Local has the shape that [Layout.LocalShape] returns. It
// is nil on a rank outside the mesh.
type Tensor struct {
	Local *tensor.Tensor
	Layout
}
