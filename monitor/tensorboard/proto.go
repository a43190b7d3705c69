// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// message is an encoded message of protocol buffers, to which fields are appended.
type message []byte

func (m message) varint(v uint64) message { return binary.AppendUvarint(m, v) }

// Wire types.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

func (m message) key(field, wire int) message { return m.varint(uint64(field<<3 | wire)) }

func (m message) integer(field int, v int64) message {
	return m.key(field, wireVarint).varint(uint64(v))
}

func (m message) double(field int, v float64) message {
	return binary.LittleEndian.AppendUint64(m.key(field, wireFixed64), math.Float64bits(v))
}

func (m message) float(field int, v float32) message {
	return binary.LittleEndian.AppendUint32(m.key(field, wireFixed32), math.Float32bits(v))
}

func (m message) bytes(field int, v []byte) message {
	return append(m.key(field, wireBytes).varint(uint64(len(v))), v...)
}

func (m message) text(field int, v string) message { return m.bytes(field, []byte(v)) }

func (m message) doubles(field int, v []float64) message {
	packed := make([]byte, 0, 8*len(v))
	for _, x := range v {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(x))
	}
	return m.bytes(field, packed)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is the checksum as records have it.
func masked(data []byte) uint32 {
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// appendRecord appends a record.
func appendRecord(to, data []byte) []byte {
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(data)))
	to = append(to, head[:]...)
	to = binary.LittleEndian.AppendUint32(to, masked(head[:]))
	to = append(to, data...)
	return binary.LittleEndian.AppendUint32(to, masked(data))
}
