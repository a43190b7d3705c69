// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"errors"
	"fmt"
)

// Kind is how values are stored.
type Kind int

// The kinds, as the format numbers them.
const (
	Boolean Kind = iota
	Int32
	Int64
	Int96
	Float
	Double
	ByteArray
	FixedLenByteArray
)

func (k Kind) String() string {
	names := []string{"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("type %d", int(k))
	}
	return names[k]
}

// maxLevels bounds how deep columns lie: a level is a byte.
const maxLevels = 255

// Node is a column, or a group of columns.
type Node struct {
	Name     string
	Children []*Node
	Leaf     bool
	Kind     Kind   // of a leaf
	Logical  string // what the values of a leaf mean, such as STRING; "" if no more than their kind
	Unsigned bool   // whole numbers
	Repeated bool
	// A value has so many levels of lists above it, and so many of what may be missing.
	Repetition, Definition int

	index int // among the leaves
}

// element is a node as the footer has it.
type element struct {
	name            string
	leaf            bool
	kind            Kind
	repetition      int64 // 0 required, 1 optional, 2 repeated
	children        int64
	converted       int64 // -1: none
	logical         string
	whole, unsigned bool // of the logical type of numbers
}

// Fields of the union of logical types that mean more than the kind, and the older numbers for them.
var (
	logicals = map[int]string{
		1: "STRING", 2: "MAP", 3: "LIST", 4: "ENUM", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIMESTAMP", 11: "NULL", 12: "JSON", 13: "BSON", 14: "UUID",
		15: "FLOAT16", 16: "VARIANT", 17: "GEOMETRY", 18: "GEOGRAPHY",
	}
	converted = map[int64]string{
		0: "STRING", 1: "MAP", 3: "LIST", 4: "ENUM", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIME", 9: "TIMESTAMP", 10: "TIMESTAMP", 19: "JSON", 20: "BSON", 21: "INTERVAL",
	}
)

const integerField = 10 // of the union of logical types

func readElement(t *thrift, kind byte) element {
	e := element{converted: -1}
	t.fields(kind, func(id int, kind byte) {
		switch id {
		case 1:
			e.leaf, e.kind = true, Kind(t.int(kind))
		case 3:
			e.repetition = t.int(kind)
		case 4:
			e.name = t.string(kind)
		case 5:
			e.children = t.int(kind)
		case 6:
			e.converted = t.int(kind)
		case 10:
			t.fields(kind, func(id int, kind byte) {
				if id != integerField {
					e.logical = logicals[id]
					t.skip(kind)
					return
				}
				e.whole, e.unsigned = true, true
				t.fields(kind, func(id int, kind byte) {
					if id == 2 {
						e.unsigned = !t.bool(kind)
					} else {
						t.skip(kind)
					}
				})
			})
		default:
			t.skip(kind)
		}
	})
	if e.logical == "" && !e.whole {
		e.logical = converted[e.converted]
		e.unsigned = 11 <= e.converted && e.converted <= 14
	}
	return e
}

// tree makes nodes of the list of elements, which has parents before their children.
func tree(elements []element) (root *Node, leaves int, err error) {
	next := 0
	var read func(depth, repetition, definition int) (*Node, error)
	read = func(depth, repetition, definition int) (*Node, error) {
		if next >= len(elements) {
			return nil, errors.New("its schema ends within a group")
		}
		e := elements[next]
		next++
		if depth > 0 && e.repetition == 1 {
			definition++
		} else if depth > 0 && e.repetition == 2 {
			repetition++
			definition++
		}
		if depth > maxLevels {
			return nil, fmt.Errorf("column %q lies more than %d deep", e.name, maxLevels)
		}
		n := &Node{
			Name: e.name, Leaf: e.leaf, Kind: e.kind, Logical: e.logical, Unsigned: e.unsigned, Repeated: depth > 0 && e.repetition == 2,
			Repetition: repetition, Definition: definition,
		}
		if e.leaf {
			n.index = leaves
			leaves++
			return n, nil
		}
		if e.children < 0 || e.children > int64(len(elements)-next) {
			return nil, fmt.Errorf("column %q has %d parts, and the schema %d more", e.name, e.children, len(elements)-next)
		}
		for range e.children {
			child, err := read(depth+1, repetition, definition)
			if err != nil {
				return nil, err
			}
			n.Children = append(n.Children, child)
		}
		return n, nil
	}
	root, err = read(0, 0, 0)
	if err == nil && root.Leaf {
		err = errors.New("its schema has no columns")
	}
	return root, leaves, err
}
