// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"encoding/binary"
	"fmt"
	"math"
)

// codeBlock is how many elements of an outer gradient share a scale.
const codeBlock = 256

// outerCode is how an outer gradient travels: as float32, or as int8 with a float32 scale for each
// block of elements.
type outerCode struct{ exact bool }

// size returns the bytes of so many elements.
func (c outerCode) size(n int) int {
	if c.exact {
		return 4 * n
	}
	return n + 4*((n+codeBlock-1)/codeBlock)
}

// encode appends the elements of g to dst. What the code leaves out of them stays in g: the error,
// which the next outer gradient takes along.
func (c outerCode) encode(dst []byte, g []float32) ([]byte, error) {
	if c.exact {
		for i, v := range g {
			if !isFinite32(v) {
				return nil, fmt.Errorf("element %d is %v", i, v)
			}
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
			g[i] = 0
		}
		return dst, nil
	}
	for at := 0; at < len(g); at += codeBlock {
		block := g[at:min(at+codeBlock, len(g))]
		most := float32(0)
		for i, v := range block {
			if !isFinite32(v) {
				return nil, fmt.Errorf("element %d is %v", at+i, v)
			}
			most = max(most, v, -v)
		}
		scale := most / 127
		if scale < minScale { // below which the error is no number that counts
			scale = 0
		}
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(scale))
		for i, v := range block {
			q := int8(0)
			if scale > 0 {
				q = int8(math.RoundToEven(float64(v / scale)))
			}
			dst = append(dst, byte(q))
			block[i] = v - float32(float32(q)*scale)
		}
	}
	return dst, nil
}

// minScale is the least scale: smaller ones are subnormal, and inexact.
const minScale = 0x1p-120

func isFinite32(v float32) bool { return v-v == 0 }

// add adds the elements of a code to sum, and returns what follows them. All islands compute the
// same bits: each product is rounded before it is added.
func (c outerCode) add(sum []float32, code []byte) (rest []byte, err error) {
	if len(code) < c.size(len(sum)) {
		return nil, fmt.Errorf("%d bytes, want %d or more", len(code), c.size(len(sum)))
	}
	if c.exact {
		for i := range sum {
			sum[i] += math.Float32frombits(binary.LittleEndian.Uint32(code[4*i:]))
		}
		return code[4*len(sum):], nil
	}
	for at := 0; at < len(sum); at += codeBlock {
		block := sum[at:min(at+codeBlock, len(sum))]
		scale := math.Float32frombits(binary.LittleEndian.Uint32(code))
		code = code[4:]
		for i := range block {
			block[i] += float32(float32(int8(code[i])) * scale)
		}
		code = code[len(block):]
	}
	return code, nil
}
