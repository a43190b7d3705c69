// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const magic = "PAR1"

// File is a Parquet file whose footer has been read.
type File struct {
	Root   *Node
	Groups []Group
	r      io.ReaderAt
	size   int64
}

// Group is a number of rows.
type Group struct {
	Rows   int64
	file   *File
	chunks []chunk
}

// chunk says where the pages of a column in a group are.
type chunk struct {
	codec                  int64
	size, data, dictionary int64 // of all pages; offsets in the file
	encrypted              bool
}

// Open reads the footer of a file of so many bytes.
func Open(r io.ReaderAt, size int64) (*File, error) {
	const ends = 2*len(magic) + 4
	if size < int64(ends) {
		return nil, fmt.Errorf("it has %d bytes: too few", size)
	}
	var head, tail [8]byte
	if _, err := r.ReadAt(head[:4], 0); err != nil {
		return nil, err
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return nil, err
	}
	for _, m := range []string{string(head[:4]), string(tail[4:])} {
		if m == "PARE" {
			return nil, errors.New("its footer is encrypted: write it without encryption")
		} else if m != magic {
			return nil, fmt.Errorf("it begins or ends with %q instead of %q", m, magic)
		}
	}
	n := int64(binary.LittleEndian.Uint32(tail[:4]))
	if n > size-int64(ends) {
		return nil, fmt.Errorf("its footer would have %d bytes of %d", n, size)
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-8-n); err != nil {
		return nil, err
	}
	f := &File{r: r, size: size}
	t := &thrift{r: bufio.NewReader(bytes.NewReader(footer))}
	var elements []element
	t.fields(thriftStruct, func(id int, kind byte) {
		switch id {
		case 2:
			t.list(kind, func(kind byte) { elements = append(elements, readElement(t, kind)) })
		case 4:
			t.list(kind, func(kind byte) { f.Groups = append(f.Groups, readGroup(t, kind, f)) })
		case 8:
			t.fail(errors.New("it is encrypted: write it without encryption"))
		default:
			t.skip(kind)
		}
	})
	if t.err != nil {
		return nil, fmt.Errorf("in its footer: %w", t.err)
	}
	root, leaves, err := tree(elements)
	if err != nil {
		return nil, err
	}
	f.Root = root
	for i, g := range f.Groups {
		if len(g.chunks) != leaves {
			return nil, fmt.Errorf("group %d of rows has %d columns, and the schema %d", i, len(g.chunks), leaves)
		}
	}
	return f, nil
}

func readGroup(t *thrift, kind byte, f *File) Group {
	g := Group{file: f}
	t.fields(kind, func(id int, kind byte) {
		switch id {
		case 1:
			t.list(kind, func(kind byte) { g.chunks = append(g.chunks, readChunk(t, kind)) })
		case 3:
			g.Rows = t.int(kind)
		default:
			t.skip(kind)
		}
	})
	return g
}

func readChunk(t *thrift, kind byte) (c chunk) {
	t.fields(kind, func(id int, kind byte) {
		switch id {
		case 3:
			t.fields(kind, func(id int, kind byte) {
				switch id {
				case 4:
					c.codec = t.int(kind)
				case 7:
					c.size = t.int(kind)
				case 9:
					c.data = t.int(kind)
				case 11:
					c.dictionary = t.int(kind)
				default:
					t.skip(kind)
				}
			})
		case 8, 9:
			c.encrypted = true
			t.skip(kind)
		default:
			t.skip(kind)
		}
	})
	return c
}
