// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// castagnoli is the polynomial of CRC-32C, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An entry in a segment, little endian, at a multiple of 8 bytes:
//
//	0  4  CRC-32C of all that follows
//	4  4  number of bytes of the payload
//	8  8  LSN
//	16 8  the LSN up to which the log was acknowledged when the entry was written
//	24    the payload, and zeros up to a multiple of 8
const (
	entryHeader = 24
	align       = 8
	// MaxEntry is the largest entry in bytes.
	MaxEntry = 1 << 30
)

// entrySize returns the bytes that an entry takes in a segment.
func entrySize(payload int) int64 {
	return entryHeader + (int64(payload)+align-1)/align*align
}

// appendEntry appends an entry in its form on disk.
func appendEntry(b []byte, lsn, acknowledged uint64, payload []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, entryHeader)...)
	binary.LittleEndian.PutUint32(b[at+4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(b[at+8:], lsn)
	binary.LittleEndian.PutUint64(b[at+16:], acknowledged)
	b = append(b, payload...)
	for (len(b)-at)%align != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[at+4:], castagnoli))
	return b
}

// entryHead is the beginning of an entry.
type entryHead struct {
	sum               uint32
	bytes             int
	lsn, acknowledged uint64
}

func parseHead(b []byte) entryHead {
	return entryHead{
		sum:          binary.LittleEndian.Uint32(b),
		bytes:        int(binary.LittleEndian.Uint32(b[4:])),
		lsn:          binary.LittleEndian.Uint64(b[8:]),
		acknowledged: binary.LittleEndian.Uint64(b[16:]),
	}
}

// good reports whether b, the bytes of an entry with its head, is what was written.
func (h entryHead) good(b []byte) bool { return crc32.Checksum(b[4:], castagnoli) == h.sum }
