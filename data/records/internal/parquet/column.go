// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
)

// Column reads the values of a leaf in a group of rows.
type Column struct {
	node       *Node
	chunk      chunk
	end        int64 // bytes of the file that pages may have
	r          *bufio.Reader
	dictionary []Value
	hasOne     bool

	left                   int64 // of the page
	repetition, definition levels
	encoding               int64
	packed                 []byte  // values
	values                 decoder // nil before the first
}

// levels says which level the next value has; nil: 0.
type levels interface{ next() (uint64, error) }

// Column returns the values of a leaf in the group.
func (g Group) Column(n *Node) (*Column, error) {
	c := g.chunks[n.index]
	if c.encrypted {
		return nil, errors.New("it is encrypted: write it without encryption")
	}
	begin := c.data
	if c.dictionary != 0 {
		begin = c.dictionary
	}
	if begin < 0 || c.size < 0 || begin > g.file.size || c.size > g.file.size-begin {
		return nil, fmt.Errorf("its pages would lie at %d, in %d bytes, of a file of %d", begin, c.size, g.file.size)
	}
	s := io.NewSectionReader(g.file.r, begin, c.size)
	return &Column{node: n, chunk: c, end: c.size, r: bufio.NewReaderSize(s, 16<<10)}, nil
}

// Next returns the next value; the error is io.EOF behind the last. Its text stays as it is.
func (c *Column) Next() (v Value, err error) {
	for c.left == 0 {
		if err := c.page(); err != nil {
			return v, err
		}
	}
	c.left--
	if v.Repetition, err = level(c.repetition, c.node.Repetition); err != nil {
		return v, err
	}
	if v.Definition, err = level(c.definition, c.node.Definition); err != nil {
		return v, err
	}
	if v.Definition < c.node.Definition {
		return v, nil
	}
	if c.values == nil {
		if c.values, err = newDecoder(c.encoding, c.node.Kind, c.packed, c.dictionary); err != nil {
			return v, err
		}
	}
	return v, c.values.next(&v)
}

func level(l levels, most int) (int, error) {
	if l == nil {
		return 0, nil
	}
	n, err := l.next()
	if err == nil && n > uint64(most) {
		err = fmt.Errorf("a value has the level %d of %d", n, most)
	}
	return int(n), err
}

// pageHeader is what stands before a page.
type pageHeader struct {
	kind                         int64 // 0 data, 1 index, 2 dictionary, 3 data of the second version
	size, packed                 int64
	sum                          uint32
	num                          int64
	encoding                     int64
	definitionBy, repetitionBy   int64 // encodings of levels
	definitionLen, repetitionLen int64 // of the second version
	plain                        bool  // not compressed, of the second version
	has                          int   // the field that has the numbers
}

// Kinds of pages, and the field of a header that describes each.
const (
	dataPage       = 0
	indexPage      = 1
	dictionaryPage = 2
	dataPage2      = 3
)

func readHeader(t *thrift) (h pageHeader) {
	t.fields(thriftStruct, func(id int, kind byte) {
		switch id {
		case 1:
			h.kind = t.int(kind)
		case 2:
			h.size = t.int(kind)
		case 3:
			h.packed = t.int(kind)
		case 4:
			h.sum = uint32(t.int(kind))
		case 5, 7, 8:
			h.has = id
			t.fields(kind, func(field int, kind byte) { h.field(t, id, field, kind) })
		default:
			t.skip(kind)
		}
	})
	return h
}

// field reads a field of one of the structs in a header: of data, of a dictionary, of data of the second
// version.
func (h *pageHeader) field(t *thrift, id, field int, kind byte) {
	switch {
	case field == 1:
		h.num = t.int(kind)
	case field == 2 && id != 8, field == 4 && id == 8:
		h.encoding = t.int(kind)
	case field == 3 && id == 5:
		h.definitionBy = t.int(kind)
	case field == 4 && id == 5:
		h.repetitionBy = t.int(kind)
	case field == 5 && id == 8:
		h.definitionLen = t.int(kind)
	case field == 6 && id == 8:
		h.repetitionLen = t.int(kind)
	case field == 7 && id == 8:
		h.plain = !t.bool(kind)
	default:
		t.skip(kind)
	}
}

// page reads the next page.
func (c *Column) page() error {
	if _, err := c.r.Peek(1); err != nil {
		return err
	}
	t := &thrift{r: c.r}
	h := readHeader(t)
	if t.err != nil {
		return fmt.Errorf("in the header of a page: %w", t.err)
	}
	if h.size < 0 || h.size >= 1<<31 || h.packed < 0 || h.packed > c.end || h.num < 0 || h.num >= 1<<31 {
		return fmt.Errorf("a page of %d values in %d bytes, %d when compressed", h.num, h.size, h.packed)
	}
	b := make([]byte, h.packed)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return errShort
	}
	if h.sum != 0 && crc32.ChecksumIEEE(b) != h.sum {
		return errors.New("the check sum of a page is not that of its bytes")
	}
	switch {
	case h.kind == indexPage:
		return nil
	case h.kind == dictionaryPage && h.has == 7:
		return c.readDictionary(h, b)
	case h.kind == dataPage && h.has == 5:
		return c.readData(h, b)
	case h.kind == dataPage2 && h.has == 8:
		return c.readData2(h, b)
	}
	return fmt.Errorf("a page of kind %d", h.kind)
}

func (c *Column) readDictionary(h pageHeader, b []byte) error {
	if c.hasOne {
		return nil
	}
	b, err := unpack(c.chunk.codec, b, int(h.size))
	if err != nil {
		return err
	}
	if h.encoding == plainDictionaryEncoding {
		h.encoding = plainEncoding
	}
	values, err := newDecoder(h.encoding, c.node.Kind, b, nil)
	if err != nil {
		return err
	}
	for range h.num {
		var v Value
		if err := values.next(&v); err != nil {
			return err
		}
		c.dictionary = append(c.dictionary, v)
	}
	c.hasOne = true
	return nil
}

func (c *Column) readData(h pageHeader, b []byte) error {
	b, err := unpack(c.chunk.codec, b, int(h.size))
	if err != nil {
		return err
	}
	read := func(encoding int64, most int) (levels, error) {
		width := uint(bits.Len(uint(most)))
		if width == 0 {
			return nil, nil
		}
		if encoding == bitPackedEncoding {
			n := (uint64(h.num)*uint64(width) + 7) / 8
			if n > uint64(len(b)) {
				return nil, errShort
			}
			l := &bigEndian{b: b[:n], width: width}
			b = b[n:]
			return l, nil
		} else if encoding != rleEncoding {
			return nil, fmt.Errorf("levels in encoding %d", encoding)
		}
		if len(b) < 4 {
			return nil, errShort
		}
		n := uint64(binary.LittleEndian.Uint32(b))
		if n > uint64(len(b)-4) {
			return nil, errShort
		}
		l := &hybrid{b: b[4 : 4+n], width: width}
		b = b[4+n:]
		return l, nil
	}
	if c.repetition, err = read(h.repetitionBy, c.node.Repetition); err != nil {
		return err
	}
	if c.definition, err = read(h.definitionBy, c.node.Definition); err != nil {
		return err
	}
	c.begin(h, b)
	return nil
}

func (c *Column) readData2(h pageHeader, b []byte) error {
	read := func(n int64, most int) (levels, error) {
		if n < 0 || n > int64(len(b)) {
			return nil, errShort
		}
		part := b[:n]
		b = b[n:]
		if most == 0 {
			return nil, nil // some writers have levels where there are none
		}
		return &hybrid{b: part, width: uint(bits.Len(uint(most)))}, nil
	}
	var err error
	if c.repetition, err = read(h.repetitionLen, c.node.Repetition); err != nil {
		return err
	}
	if c.definition, err = read(h.definitionLen, c.node.Definition); err != nil {
		return err
	}
	if size := h.size - h.repetitionLen - h.definitionLen; size < 0 {
		return errShort
	} else if !h.plain && (size > 0 || len(b) > 0) {
		if b, err = unpack(c.chunk.codec, b, int(size)); err != nil {
			return err
		}
	}
	c.begin(h, b)
	return nil
}

// begin makes the page the one that is read. One without values may lack what others begin with.
func (c *Column) begin(h pageHeader, b []byte) {
	c.left, c.encoding, c.packed, c.values = h.num, h.encoding, b, nil
}
