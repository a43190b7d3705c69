// SPDX-License-Identifier: Apache-2.0

package checkpoint

import "hash/crc32"

// castagnoli is the polynomial of CRC-32C, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunkBytes is the length of the pieces of a box that have a checksum each. The last piece
// of a box may be shorter.
const chunkBytes = 1 << 20

// numChunks returns how many checksums a box of size bytes has.
func numChunks(size int64) int64 { return (size + chunkBytes - 1) / chunkBytes }

// joinSums returns the CRC-32C of bytes with the sum a followed by size bytes with the sum b.
// So the sum of a file comes from those of its chunks, and each byte is summed once.
func joinSums(a, b uint32, size int64) uint32 {
	if size == chunkBytes {
		return multiply(shiftOfChunk, a) ^ b
	}
	return multiply(shiftOf(size), a) ^ b
}

var shiftOfChunk = shiftOf(chunkBytes)

// Sums are polynomials over GF(2) whose coefficients are reversed: bit 31 is that of 1.
const one = uint32(1) << 31

// multiply returns the product of a and b modulo the polynomial of CRC-32C.
func multiply(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		b = timesX(b)
	}
	return product
}

func timesX(b uint32) uint32 {
	if b&1 != 0 {
		return b>>1 ^ crc32.Castagnoli
	}
	return b >> 1
}

// shiftOf returns x to the power of the bits of size bytes.
func shiftOf(size int64) uint32 {
	power, square := one, one
	for range 8 {
		square = timesX(square)
	}
	for ; size > 0; size >>= 1 {
		if size&1 != 0 {
			power = multiply(power, square)
		}
		square = multiply(square, square)
	}
	return power
}
