// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// The rows of a table lie in a file of blocks. All records of a block have a row, or none has (as
// tombstones). A block, little endian:
//
//	0  4  "rowb"
//	4  4  CRC-32C of all that follows
//	8  4  number of records
//	12 4  bytes of a row
//	16 4  bytes of its state
//	20 4  zero
//	24    the records: key, LSN and step of 8 bytes, count of 4, flags of 4, the row, the state
const (
	blockMagic   = "rowb"
	blockHeader  = 24
	recordHeader = 32
	blockBytes   = 4 << 20

	flagYoung = 1 // the key waits for its admission
)

// block packs records. Its buffer is used again.
type block struct {
	row, state int // bytes of a row and its state, 0 in a block of records without
	records    int
	buf        []byte
}

// begin empties the block for records of a form.
func (b *block) begin(row, state int) {
	b.row, b.state, b.records = row, state, 0
	b.buf = append(b.buf[:0], make([]byte, blockHeader)...)
}

// takes reports whether a record of this form still fits.
func (b *block) takes(r *rows.Record) bool {
	return len(r.Row) == b.row && len(r.State) == b.state &&
		(b.records == 0 || len(b.buf)+recordHeader+b.row+b.state <= blockBytes)
}

func (b *block) add(r *rows.Record) {
	var h [recordHeader]byte
	binary.LittleEndian.PutUint64(h[0:], uint64(r.Key))
	binary.LittleEndian.PutUint64(h[8:], r.LSN)
	binary.LittleEndian.PutUint64(h[16:], r.Step)
	binary.LittleEndian.PutUint32(h[24:], r.Count)
	if r.Young {
		h[28] = flagYoung
	}
	b.buf = append(b.buf, h[:]...)
	b.buf = append(b.buf, r.Row...)
	b.buf = append(b.buf, r.State...)
	b.records++
}

// seal fills the header in and returns the block's checksum.
func (b *block) seal() uint32 {
	copy(b.buf, blockMagic)
	binary.LittleEndian.PutUint32(b.buf[8:], uint32(b.records))
	binary.LittleEndian.PutUint32(b.buf[12:], uint32(b.row))
	binary.LittleEndian.PutUint32(b.buf[16:], uint32(b.state))
	sum := crc32.Checksum(b.buf[8:], castagnoli)
	binary.LittleEndian.PutUint32(b.buf[4:], sum)
	return sum
}

// blockHead is the beginning of a block.
type blockHead struct {
	sum                 uint32
	records, row, state int
}

// parseBlock checks the beginning of a block, at most rest bytes long.
func parseBlock(b []byte, rest int64) (h blockHead, size int64, err error) {
	h = blockHead{
		sum:     binary.LittleEndian.Uint32(b[4:]),
		records: int(binary.LittleEndian.Uint32(b[8:])),
		row:     int(binary.LittleEndian.Uint32(b[12:])),
		state:   int(binary.LittleEndian.Uint32(b[16:])),
	}
	each := recordHeader + int64(h.row) + int64(h.state)
	if string(b[:4]) != blockMagic || h.records == 0 || each > (rest-blockHeader)/int64(h.records) {
		return h, 0, fmt.Errorf("no block of rows begins there")
	}
	return h, blockHeader + int64(h.records)*each, nil
}

// each gives the records of a block to fn. Their bytes are those of b.
func (h blockHead) each(b []byte, fn func(rows.Record) error) error {
	b = b[blockHeader:]
	for range h.records {
		r := rows.Record{
			Key:   int64(binary.LittleEndian.Uint64(b[0:])),
			LSN:   binary.LittleEndian.Uint64(b[8:]),
			Step:  binary.LittleEndian.Uint64(b[16:]),
			Count: binary.LittleEndian.Uint32(b[24:]),
			Young: b[28] == flagYoung,
		}
		b = b[recordHeader:]
		if h.row > 0 {
			r.Row = b[:h.row:h.row]
		}
		if h.state > 0 {
			r.State = b[h.row:][:h.state:h.state]
		}
		b = b[h.row+h.state:]
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}
