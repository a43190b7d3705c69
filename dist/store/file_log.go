// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
)

// The file of a File begins with fileMagic. Then come records, one after the
// other, each of them (integers little endian)
//
//	length of the payload (4 bytes), CRC-32C of the payload (4 bytes)
//	payload: opcode (1 byte), then the request as on the wire, without an id
const (
	fileMagic    = "cohort store 1\n\x00"
	recordHeader = 8
	logChunk     = 64 << 10 // read at once, and the most room that is kept
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errNoLog   = errors.New("not a file of this store: give the path of a new file")
	errDamaged = errors.New("the file is damaged")
	// errShort is a record that is not all there.
	errShort = errors.New("the record ends beyond the data")
	// errUnsure is a reader that needs the lock to know.
	errUnsure = errors.New("another process may be writing")
)

// ownFormat is the format of a File.
type ownFormat struct{}

func (ownFormat) begin(f *os.File) error {
	head := make([]byte, len(fileMagic))
	n, err := f.ReadAt(head, 0)
	if n < len(head) && string(head[:n]) == fileMagic[:n] { // new, or its maker died
		_, err = f.WriteAt([]byte(fileMagic), 0)
		return err
	}
	if string(head) != fileMagic {
		return fmt.Errorf("%w: it begins with %q", errNoLog, head[:n])
	}
	return err
}

func (ownFormat) headSize() int64 { return int64(len(fileMagic)) }

func (ownFormat) appendRecord(b []byte, q *request, _ *machine) []byte { return appendRecord(b, q) }

func (ownFormat) nextRecord(b []byte, atEnd bool) (request, int, error) { return nextRecord(b, atEnd) }

// changes says whether an operation may change the state.
func (o opcode) changes() bool {
	switch o {
	case opSet, opAdd, opCAS, opDelete, opAppend, opMultiSet, opPush, opPop, opPyTorchFileAdd:
		return true
	}
	return false
}

// appendRecord appends a request's record.
func appendRecord(b []byte, q *request) []byte {
	begin := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, byte(q.op))
	b, tail := appendBody(b, q)
	b = append(b, tail...)
	payload := b[begin+recordHeader:]
	binary.LittleEndian.PutUint32(b[begin:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[begin+4:], checksum(payload))
	return b
}

// nextRecord reads the record at the beginning of b, and returns its size. Its slices
// are parts of b. For errShort the size is that of the whole record, 0 if that is
// not known. atEnd says that b ends with the file: what is wrong there
// was being written when the writer or the system died, and counts as short.
func nextRecord(b []byte, atEnd bool) (q request, size int, err error) {
	if len(b) < recordHeader {
		if atEnd {
			return request{}, 0, errShort
		}
		return request{}, recordHeader, errShort
	}
	length := binary.LittleEndian.Uint32(b)
	if length == 0 && atEnd && isZero(b) {
		return request{}, 0, errShort // room that the system gave before the data
	}
	if length == 0 || length > maxFrame {
		return request{}, 0, errDamaged
	}
	size = recordHeader + int(length)
	if size > len(b) {
		return request{}, size, errShort
	}
	payload := b[recordHeader:size]
	if checksum(payload) != binary.LittleEndian.Uint32(b[4:]) {
		if atEnd && size == len(b) {
			return request{}, 0, errShort
		}
		return request{}, 0, errDamaged
	}
	q, err = parseBody(payload[0], reader{rest: payload[1:]})
	if err != nil || !q.op.changes() {
		return request{}, 0, errDamaged
	}
	if _, err := q.check(); err != nil {
		return request{}, 0, errDamaged
	}
	return q, size, nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
