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
	"strings"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	parquetformat "github.com/parquet-go/parquet-go/format"
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
	for _, c := range file.Root().Columns() {
		if len(fields) > 0 && !slices.Contains(fields, c.Name()) {
			continue
		}
		col := &column{name: c.Name(), node: c}
		if why := col.unreadable(c); why != "" {
			if len(fields) > 0 {
				return nil, &Error{Field: c.Name(), Detail: why}
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

// openParquetFile reads the footer. The library panics about some that are damaged.
func openParquetFile(f io.ReaderAt, size int64) (file *parquet.File, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
		if err != nil {
			err = &Error{Detail: "is no Parquet file, or is damaged: " + strings.ReplaceAll(err.Error(), "\n", " ")}
		}
	}()
	return parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
}

// column is a field of a Parquet file.
type column struct {
	name   string
	node   *parquet.Column
	leaves []*leaf
	next   int // leaf, while a row is put together
}

// leaf is a column of values below a field.
type leaf struct {
	node   *parquet.Column
	pages  parquet.Pages
	page   parquet.ValueReader
	buf    []parquet.Value
	have   []parquet.Value // read, not used
	values []parquet.Value // of this row, that are not used yet
}

// unreadable says why a column is not read, and notes its leaves.
func (c *column) unreadable(n *parquet.Column) string {
	if !n.Leaf() {
		for _, child := range n.Columns() {
			if why := c.unreadable(child); why != "" {
				return why
			}
		}
		return ""
	}
	c.leaves = append(c.leaves, &leaf{node: n})
	t := n.Type()
	logical := ""
	if lt := t.LogicalType(); lt != nil && lt.Value != nil {
		logical = lt.String()
	} else if ct := t.ConvertedType(); ct != nil && *ct == deprecated.UTF8 {
		logical = "STRING"
	}
	switch k, plain := t.Kind(), logical == "" || strings.HasPrefix(logical, "INT("); {
	case plain && slices.Contains([]parquet.Kind{parquet.Boolean, parquet.Int32, parquet.Int64, parquet.Float, parquet.Double}, k),
		k == parquet.ByteArray && slices.Contains([]string{"STRING", "ENUM", "JSON"}, logical):
		return ""
	case k == parquet.ByteArray && logical == "":
		return "has bytes, which are not read: write it as text"
	}
	return "is of the type " + t.String() + ", which is not read: write it as text or as a number"
}

// writeRows writes all rows. The library panics about some pages that are damaged.
func writeRows(ctx context.Context, w *bufio.Writer, file *parquet.File, columns []*column) (err error) {
	row := 0
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
		if bad := (*Error)(nil); err != nil && !errors.As(err, &bad) && context.Cause(ctx) == nil {
			err = &Error{Record: row + 1, Detail: "is damaged: " + strings.ReplaceAll(err.Error(), "\n", " ")}
		}
	}()
	for _, group := range file.RowGroups() {
		chunks := group.ColumnChunks()
		for _, c := range columns {
			for _, l := range c.leaves {
				l.pages, l.page, l.have = chunks[l.node.Index()].Pages(), nil, nil
				defer l.pages.Close()
			}
		}
		for range group.NumRows() {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			line := []byte{'{'}
			for i, c := range columns {
				if i > 0 {
					line = append(line, ',')
				}
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
			return nil, err
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
	for {
		if len(l.have) == 0 {
			if err := l.fill(); errors.Is(err, io.EOF) && len(l.values) > 0 {
				return nil
			} else if err != nil {
				return err
			}
		}
		v := l.have[0]
		if v.RepetitionLevel() == 0 && len(l.values) > 0 {
			return nil
		}
		l.values = append(l.values, v.Clone())
		l.have = l.have[1:]
		if l.node.MaxRepetitionLevel() == 0 {
			return nil
		}
	}
}

// fill reads some values.
func (l *leaf) fill() error {
	if l.buf == nil {
		l.buf = make([]parquet.Value, 256)
	}
	for {
		if l.page == nil {
			page, err := l.pages.ReadPage()
			if err != nil {
				return err
			}
			l.page = page.Values()
		}
		n, err := l.page.ReadValues(l.buf)
		if errors.Is(err, io.EOF) {
			l.page, err = nil, nil
		}
		if err != nil {
			return err
		}
		if n > 0 {
			l.have = l.buf[:n]
			return nil
		}
	}
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
func (c *column) value(n *parquet.Column, leaves [][]parquet.Value) (any, error) {
	first := leaves[0]
	if len(first) == 0 {
		return nil, errors.New("the columns of a row have different lengths: the file is damaged")
	}
	if first[0].DefinitionLevel() < n.MaxDefinitionLevel() {
		if n.Repeated() {
			return []any{}, nil
		}
		return nil, nil
	}
	if n.Repeated() {
		list := []any{}
		for len(leaves[0]) > 0 {
			part, rest := cutElement(leaves, n.MaxRepetitionLevel())
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
		for at < len(values) && values[at].RepetitionLevel() > level {
			at++
		}
		part, rest = append(part, values[:at]), append(rest, values[at:])
	}
	return part, rest
}

// content is what a node has that is there.
func (c *column) content(n *parquet.Column, leaves [][]parquet.Value) (any, error) {
	if n.Leaf() {
		return leafValue(n, leaves[0][0])
	}
	children := n.Columns()
	// A list has a repeated node with the element in it.
	if len(children) == 1 && children[0].Repeated() {
		list := children[0]
		if inner := list.Columns(); len(inner) == 1 && (list.Name() == "list" || list.Name() == "bag" || list.Name() == "array") {
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
		}{child.Name(), v})
		at += num
	}
	return o, nil
}

func countLeaves(n *parquet.Column) int {
	if n.Leaf() {
		return 1
	}
	num := 0
	for _, c := range n.Columns() {
		num += countLeaves(c)
	}
	return num
}

// leafValue is a value as JSON has it. What JSON has not, NaN and infinities, is null.
func leafValue(n *parquet.Column, v parquet.Value) (any, error) {
	signed := true
	if lt := n.Type().LogicalType(); lt != nil {
		if whole, ok := lt.Value.(*parquetformat.IntType); ok {
			signed = whole.IsSigned
		}
	}
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean(), nil
	case parquet.Int32:
		if !signed {
			return v.Uint32(), nil
		}
		return v.Int32(), nil
	case parquet.Int64:
		if !signed {
			return v.Uint64(), nil
		}
		return v.Int64(), nil
	case parquet.Float:
		return finite(float64(v.Float())), nil
	case parquet.Double:
		return finite(v.Double()), nil
	}
	text := v.ByteArray()
	if !utf8.Valid(text) {
		return nil, errors.New("is no UTF-8")
	}
	return string(text), nil
}

func finite(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}
