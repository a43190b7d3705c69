// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/random"

// DropoutScales fills dst with what dropout of share p multiplies elements
// offset, offset+1, … by: 0 with probability p, else 1/(1-p) (Srivastava et al.
// 2014). An element is a pure function of the generator, the stream and its
// position.
func DropoutScales(dst []float32, r random.Philox, stream, offset uint64, p float32) {
	// A word below the limit drops: of 2³² words, p·2³².
	limit := uint64(float64(p) * (1 << 32))
	scale := float32(1 / (1 - float64(p)))
	for i := 0; i < len(dst); {
		at := offset + uint64(i)
		words := r.Block(stream, at/4)
		for _, w := range words[at%4:] {
			if i == len(dst) {
				return
			}
			dst[i] = 0
			if uint64(w) >= limit {
				dst[i] = scale
			}
			i++
		}
	}
}
