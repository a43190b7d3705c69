// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/random"

// philoxState is what the assembly needs of a generator: its fields lie side by
// side.
type philoxState struct {
	keys    [20]uint32 // two a round
	offsets [16]uint32 // of the lanes' blocks
	counter [4]uint32  // of the first block; the first word does not overflow
}

// philoxChunk is how many words are drawn at once.
const philoxChunk = 256

// drawWords fills dst, at most philoxChunk words, with blocks block, block+1, …
// of a stream, and returns how many words it has filled: whole blocks, at least
// want of them or as many as there is room for. See random.Philox.
func drawWords(dst *[philoxChunk]uint32, r random.Philox, stream, block uint64, want int) int {
	lanes := philoxLanes()
	if unit := 4 * lanes; lanes > 0 && block>>32 == (block+philoxChunk)>>32 {
		n := min(roundUp(want, unit), philoxChunk)
		s := philoxState{counter: [4]uint32{uint32(block), uint32(block >> 32), uint32(stream), uint32(stream >> 32)}}
		k0, k1 := uint32(r.Key), uint32(r.Key>>32)
		for i := 0; i < len(s.keys); i += 2 {
			s.keys[i], s.keys[i+1] = k0, k1
			k0 += 0x9e3779b9
			k1 += 0xbb67ae85
		}
		// Lane l of the 128 bits number p gets block lanes/4·l + p, so that blocks
		// are in order when their words have been interleaved.
		for i := range lanes {
			s.offsets[i] = uint32(i%4*(lanes/4) + i/4)
		}
		vectorPhilox(dst[:n], &s)
		return n
	}
	n := min(roundUp(want, 4), philoxChunk)
	for i := 0; i < n; i += 4 {
		w := r.Block(stream, block+uint64(i/4))
		copy(dst[i:], w[:])
	}
	return n
}

// DropoutScales fills dst with what dropout of share p multiplies elements
// offset, offset+1, … by: 0 with probability p, else 1/(1-p) (Srivastava et al.
// 2014). An element is a pure function of the generator, the stream and its
// position.
func DropoutScales(dst []float32, r random.Philox, stream, offset uint64, p float32) {
	// A word below the limit drops: of 2³² words, p·2³².
	limit := uint32(float64(p) * (1 << 32))
	scale := float32(1 / (1 - float64(p)))
	var words [philoxChunk]uint32
	for len(dst) > 0 {
		skip := int(offset % 4)
		n := min(drawWords(&words, r, stream, offset/4, len(dst)+skip)-skip, len(dst))
		wordScales(dst[:n], words[skip:skip+n], limit, scale)
		dst, offset = dst[n:], offset+uint64(n)
	}
}

func wordScalesGo(dst []float32, words []uint32, limit uint32, scale float32) {
	for i, w := range words {
		dst[i] = 0
		if w >= limit {
			dst[i] = scale
		}
	}
}
