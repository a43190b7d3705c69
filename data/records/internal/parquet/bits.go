// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

var (
	errShort = errors.New("a page ends before its values")
	errWidth = errors.New("a page has numbers of too many bits")
)

// bitsAt returns a number of so many bits, at most 64, which begins at a bit, counted from the lowest
// of the first byte. Beyond the end there are zeros: some writers leave out the padding.
func bitsAt(b []byte, bit uint64, width uint) uint64 {
	if width == 0 || bit/8 >= uint64(len(b)) {
		return 0
	}
	b = b[bit/8:]
	var word [9]byte
	if len(b) < len(word) {
		copy(word[:], b)
		b = word[:]
	}
	shift := bit % 8
	v := binary.LittleEndian.Uint64(b) >> shift
	if shift > 0 {
		v |= uint64(b[8]) << (64 - shift)
	}
	if width < 64 {
		v &= 1<<width - 1
	}
	return v
}

// hybrid reads numbers of one width in runs: of the same number, or of packed ones.
type hybrid struct {
	b      []byte
	width  uint
	left   uint64 // of the run
	packed []byte // of the run; nil: it has value
	bit    uint64
	value  uint64
}

func (h *hybrid) next() (uint64, error) {
	for h.left == 0 {
		if h.width == 0 && len(h.b) == 0 {
			return 0, nil // some writers leave out runs of nothing
		}
		head, n := binary.Uvarint(h.b)
		if n <= 0 {
			return 0, errShort
		}
		h.b = h.b[n:]
		if head&1 == 0 {
			size := int(h.width+7) / 8
			if size > len(h.b) {
				return 0, errShort
			}
			h.left, h.packed, h.value = head>>1, nil, bitsAt(h.b[:size], 0, h.width)
			h.b = h.b[size:]
			continue
		}
		groups := head >> 1
		if groups > 1<<32 {
			return 0, errShort
		}
		size := min(groups*uint64(h.width), uint64(len(h.b)))
		h.left, h.packed, h.bit = groups*8, h.b[:size:size], 0
		if h.width > 0 { // the last group may be cut off
			h.left = min(h.left, size*8/uint64(h.width))
		} else {
			h.packed, h.value = nil, 0
		}
		h.b = h.b[size:]
		if h.left == 0 && groups > 0 {
			return 0, errShort
		}
	}
	h.left--
	if h.packed == nil {
		return h.value, nil
	}
	v := bitsAt(h.packed, h.bit, h.width)
	h.bit += uint64(h.width)
	return v, nil
}

// bigEndian reads levels as the first version of the format packed them: from the highest bit.
type bigEndian struct {
	b     []byte
	width uint
	bit   uint64
}

func (p *bigEndian) next() (uint64, error) {
	v := uint64(0)
	for range p.width {
		if p.bit/8 >= uint64(len(p.b)) {
			return 0, errShort
		}
		v = v<<1 | uint64(p.b[p.bit/8]>>(7-p.bit%8)&1)
		p.bit++
	}
	return v, nil
}

// delta reads whole numbers as differences, which lie in blocks of packed ones.
type delta struct {
	b      []byte
	num    uint64 // that are left
	last   uint64
	least  uint64 // of the differences of the block
	widths []byte // of the block's parts that are left
	parts  uint64 // of a block
	size   uint64 // of a part, in numbers
	packed []byte // of the part
	left   uint64
	bit    uint64
	width  uint
	begun  bool
}

func newDelta(b []byte) (*delta, error) {
	d := &delta{b: b}
	var head [4]uint64
	for i := range head {
		v, n := binary.Uvarint(d.b)
		if n <= 0 {
			return nil, errShort
		}
		head[i], d.b = v, d.b[n:]
	}
	block, parts := head[0], head[1]
	if block == 0 || block > 1<<30 || parts == 0 || parts > block || block%parts != 0 || block/parts%8 != 0 || head[2] > 1<<31 {
		return nil, fmt.Errorf("a page of differences has %d values in blocks of %d with %d parts", head[2], block, parts)
	}
	d.parts, d.size, d.num, d.last = parts, block/parts, head[2], uint64(zigzag(head[3]))
	return d, nil
}

// part begins the next part of a block, and the next block if need be.
func (d *delta) part() error {
	if len(d.widths) == 0 {
		least, n := binary.Uvarint(d.b)
		if n <= 0 || uint64(len(d.b)-n) < d.parts {
			return errShort
		}
		d.least = uint64(zigzag(least))
		d.widths, d.b = d.b[n:n+int(d.parts)], d.b[n+int(d.parts):]
	}
	d.width, d.widths = uint(d.widths[0]), d.widths[1:]
	if d.width > 64 {
		return errWidth
	}
	size := d.size / 8 * uint64(d.width)
	if had := uint64(len(d.b)); size > had {
		if (min(d.size, d.num)*uint64(d.width)+7)/8 > had {
			return errShort
		}
		size = had
	}
	d.packed, d.b = d.b[:size], d.b[size:]
	d.left, d.bit = d.size, 0
	return nil
}

func (d *delta) next() (uint64, error) {
	if d.num == 0 {
		return 0, errShort
	}
	if !d.begun {
		d.begun = true
		d.num--
		return d.last, nil
	}
	if d.left == 0 {
		if err := d.part(); err != nil {
			return 0, err
		}
	}
	d.last += d.least + bitsAt(d.packed, d.bit, d.width)
	d.bit += uint64(d.width)
	d.left--
	d.num--
	return d.last, nil
}

// rest is what lies behind the numbers. It walks over them without reading them.
func (d delta) rest() ([]byte, error) {
	for left := d.num - min(1, d.num); left > 0; left -= min(left, d.size) {
		d.num = left
		if err := d.part(); err != nil {
			return nil, err
		}
	}
	return d.b, nil
}
