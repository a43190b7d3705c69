// SPDX-License-Identifier: Apache-2.0

package records

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/data/records/internal/parquet"
)

// openParquet opens the columns of a Parquet file, of which the cache has a copy as lines of JSON: a row
// lies in pages of many columns, each of which is decoded as a whole.
func openParquet(ctx context.Context, path string, o Options, c *cache) (source, error) {
	kind := "parquet"
	if len(o.Fields) > 0 {
		kind += fmt.Sprintf(" %q", slices.Sorted(slices.Values(o.Fields)))
	}
	return openCopied(ctx, path, kind, c, func(f *os.File) (io.ReadCloser, error) { return parquetLines(ctx, f, o.Fields) })
}

// parquetLines writes the rows of a Parquet file as lines of JSON.
func parquetLines(ctx context.Context, f *os.File, fields []string) (io.ReadCloser, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := openParquetFile(f, info.Size())
	if err != nil {
		return nil, err
	}
	var columns []*column
	for _, c := range file.Root.Children {
		if len(fields) > 0 && !slices.Contains(fields, c.Name) {
			continue
		}
		col := &column{name: c.Name, node: c}
		if why := col.unreadable(c); why != "" {
			if len(fields) > 0 {
				return nil, &Error{Field: c.Name, Detail: why}
			}
			continue
		}
		columns = append(columns, col)
	}
	if len(columns) == 0 {
		return nil, &Error{Detail: "has no column of texts, numbers, truth values, or lists and objects of them"}
	}
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 256<<10)
		err := writeRows(ctx, out, file, columns)
		if err == nil {
			err = out.Flush()
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

func openParquetFile(f io.ReaderAt, size int64) (*parquet.File, error) {
	file, err := parquet.Open(f, size)
	if err != nil {
		return nil, &Error{Detail: "is no Parquet file, or is damaged: " + err.Error()}
	}
	return file, nil
}

// column is a field of a Parquet file.
type column struct {
	name   string
	node   *parquet.Node
	leaves []*leaf
	next   int // leaf, while a row is put together
}

// leaf is a column of values below a field.
type leaf struct {
	node   *parquet.Node
	column *parquet.Column // of the group of rows
	ahead  *parquet.Value  // read, not used
	values []parquet.Value // of this row, that are not used yet
}

// unreadable says why a column is not read, and notes its leaves.
func (c *column) unreadable(n *parquet.Node) string {
	if !n.Leaf {
		if len(n.Children) == 0 {
			return "has objects without fields, which are not read"
		}
		for _, child := range n.Children {
			if why := c.unreadable(child); why != "" {
				return why
			}
		}
		return ""
	}
	c.leaves = append(c.leaves, &leaf{node: n})
	switch {
	case n.Logical == "" && slices.Contains([]parquet.Kind{parquet.Boolean, parquet.Int32, parquet.Int64, parquet.Float, parquet.Double}, n.Kind),
		n.Kind == parquet.ByteArray && slices.Contains([]string{"STRING", "ENUM", "JSON"}, n.Logical):
		return ""
	case n.Kind == parquet.ByteArray && n.Logical == "":
		return "has bytes, which are not read: write it as text"
	}
	kind := n.Logical
	if kind == "" {
		kind = n.Kind.String()
	}
	return "is of the type " + kind + ", which is not read: write it as text or as a number"
}

// writeRows writes all rows.
func writeRows(ctx context.Context, w *bufio.Writer, file *parquet.File, columns []*column) error {
	row := 0
	for _, group := range file.Groups {
		for _, c := range columns {
			for _, l := range c.leaves {
				var err error
				if l.column, err = group.Column(l.node); err != nil {
					return &Error{Record: row + 1, Field: c.name, Detail: "is damaged: " + err.Error()}
				}
				l.ahead = nil
			}
		}
		for range group.Rows {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			line := []byte{'{'}
			for i, c := range columns {
				if i > 0 {
					line = append(line, ',')
				}
				var err error
				if line, err = c.append(line); err != nil {
					return &Error{Record: row + 1, Field: c.name, Detail: err.Error()}
				}
			}
			if len(line) > maxRecord {
				return &Error{Record: row + 1, Detail: fmt.Sprintf("it has more than %d MiB: a record is at most that long", maxRecord>>20)}
			}
			w.Write(append(line, '}', '\n')) // a bufio.Writer keeps its first error
			row++
		}
	}
	return w.Flush()
}

// append writes the field of the next row.
func (c *column) append(line []byte) ([]byte, error) {
	for _, l := range c.leaves {
		if err := l.row(); err != nil {
			return nil, fmt.Errorf("is damaged: %w", err)
		}
	}
	name, err := json.Marshal(c.name)
	if err != nil {
		return nil, err
	}
	c.next = 0
	v, err := c.value(c.node, c.values())
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	return append(append(append(line, name...), ':'), text...), err
}

// values are those of this row, by leaf.
func (c *column) values() [][]parquet.Value {
	all := make([][]parquet.Value, len(c.leaves))
	for i, l := range c.leaves {
		all[i] = l.values
	}
	return all
}

// row reads the values of the next row: up to the next one that repeats nothing.
func (l *leaf) row() error {
	l.values = l.values[:0]
	if l.ahead != nil {
		l.values, l.ahead = append(l.values, *l.ahead), nil
	}
	for len(l.values) == 0 || l.node.Repetition > 0 {
		v, err := l.column.Next()
		if errors.Is(err, io.EOF) && len(l.values) > 0 {
			return nil
		} else if errors.Is(err, io.EOF) {
			return errors.New("it has fewer values than its group has rows")
		} else if err != nil {
			return err
		}
		if v.Repetition == 0 && len(l.values) > 0 {
			l.ahead = &v
			return nil
		}
		l.values = append(l.values, v)
	}
	return nil
}

// ordered is an object whose fields keep their order.
type ordered []struct {
	name  string
	value any
}

// MarshalJSON writes the object.
func (o ordered) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}'), nil
}

// value puts a value together from those of the leaves below a node, as Dremel lays them out (Melnik et
// al. 2010): a node is there if its values are defined up to its level, and its elements begin where
// values repeat at its level.
func (c *column) value(n *parquet.Node, leaves [][]parquet.Value) (any, error) {
	first := leaves[0]
	if len(first) == 0 {
		return nil, errors.New("is damaged: its parts have different lengths")
	}
	if first[0].Definition < n.Definition {
		if n.Repeated {
			return []any{}, nil
		}
		return nil, nil
	}
	if n.Repeated {
		list := []any{}
		for len(leaves[0]) > 0 {
			part, rest := cutElement(leaves, n.Repetition)
			v, err := c.content(n, part)
			if err != nil {
				return nil, err
			}
			list, leaves = append(list, v), rest
		}
		return list, nil
	}
	return c.content(n, leaves)
}

// cutElement cuts the first element of a repeated node off.
func cutElement(leaves [][]parquet.Value, level int) (part, rest [][]parquet.Value) {
	for _, values := range leaves {
		at := min(1, len(values))
		for at < len(values) && values[at].Repetition > level {
			at++
		}
		part, rest = append(part, values[:at]), append(rest, values[at:])
	}
	return part, rest
}

// content is what a node has that is there.
func (c *column) content(n *parquet.Node, leaves [][]parquet.Value) (any, error) {
	if n.Leaf {
		return leafValue(n, leaves[0][0])
	}
	children := n.Children
	// A list has a repeated node with the element in it.
	if len(children) == 1 && children[0].Repeated {
		list := children[0]
		if inner := list.Children; len(inner) == 1 && (list.Name == "list" || list.Name == "bag" || list.Name == "array") {
			v, err := c.value(list, leaves)
			if elements, ok := v.([]any); ok {
				for i, e := range elements {
					if o, ok := e.(ordered); ok && len(o) == 1 {
						elements[i] = o[0].value
					}
				}
			}
			return v, err
		}
		return c.value(list, leaves)
	}
	var o ordered
	at := 0
	for _, child := range children {
		num := countLeaves(child)
		v, err := c.value(child, leaves[at:at+num])
		if err != nil {
			return nil, err
		}
		o = append(o, struct {
			name  string
			value any
		}{child.Name, v})
		at += num
	}
	return o, nil
}

func countLeaves(n *parquet.Node) int {
	if n.Leaf {
		return 1
	}
	num := 0
	for _, c := range n.Children {
		num += countLeaves(c)
	}
	return num
}

// leafValue is a value as JSON has it. What JSON has not, NaN and infinities, is null.
func leafValue(n *parquet.Node, v parquet.Value) (any, error) {
	switch n.Kind {
	case parquet.Boolean:
		return v.Bits != 0, nil
	case parquet.Int32:
		if n.Unsigned {
			return uint32(v.Bits), nil
		}
		return int32(v.Bits), nil
	case parquet.Int64:
		if n.Unsigned {
			return v.Bits, nil
		}
		return int64(v.Bits), nil
	case parquet.Float, parquet.Double:
		return finite(v.Double(n.Kind)), nil
	}
	if !utf8.Valid(v.Text) {
		return nil, errors.New("is no UTF-8")
	}
	return string(v.Text), nil
}

func finite(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}
