// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/visible"
)

// moduleTree is a module or a tensor of a checkpoint, by the parts of its name.
type moduleTree struct {
	name     string
	tensor   *safetensors.Info // nil for a module
	boxes    string            // how the tensor is cut, for people
	children []*moduleTree
	byName   map[string]*moduleTree
	bytes    int64
	// kind is equal for modules that have the same tensors within.
	kind string
}

// newModuleTree arranges tensors as modules. boxes says how a tensor is cut.
func newModuleTree(infos []safetensors.Info, boxes func(name string) string) *moduleTree {
	root := &moduleTree{}
	for _, info := range infos {
		node := root
		for part := range strings.SplitSeq(info.Name, ".") {
			child := node.byName[part]
			if child == nil {
				child = &moduleTree{name: part}
				if node.byName == nil {
					node.byName = make(map[string]*moduleTree)
				}
				node.byName[part] = child
				node.children = append(node.children, child)
			}
			node = child
		}
		node.tensor, node.boxes = &info, boxes(info.Name)
	}
	root.finish()
	return root
}

// finish sums bytes, orders the children, and joins a module that has only one child
// with it.
func (t *moduleTree) finish() {
	var kind strings.Builder
	if t.tensor != nil {
		t.bytes = t.tensor.NumBytes()
		fmt.Fprintf(&kind, "%v%v%s", t.tensor.DType, t.tensor.Shape, t.boxes)
	}
	slices.SortStableFunc(t.children, func(a, b *moduleTree) int {
		x, errX := strconv.Atoi(a.name)
		y, errY := strconv.Atoi(b.name)
		if errX == nil && errY == nil {
			return cmp.Compare(x, y)
		}
		return strings.Compare(a.name, b.name)
	})
	for _, c := range t.children {
		c.finish()
		t.bytes += c.bytes
		fmt.Fprintf(&kind, "{%s %s}", c.name, c.kind)
	}
	t.kind = kind.String()
	if len(t.children) == 1 && t.tensor == nil && t.name != "" {
		c := t.children[0]
		t.name, t.tensor, t.boxes, t.children = t.name+"."+c.name, c.tensor, c.boxes, c.children
	}
}

// treeLine is a line of the printed tree.
type treeLine struct{ name, dtype, shape, boxes, size string }

// lines returns the tree as lines, of which the first are indented by depth. Modules that
// follow each other by number and have the same tensors are one, unless all are wanted. Of
// modules below the depth most only the number of tensors is shown.
func (t *moduleTree) lines(depth, most int, all bool) (out []treeLine) {
	for i := 0; i < len(t.children); i++ {
		c, name, last := t.children[i], t.children[i].name, i
		for !all && last+1 < len(t.children) && follows(t.children[last], t.children[last+1]) {
			last++
		}
		size := inBytes(c.bytes)
		if last > i {
			name = fmt.Sprintf("%s … %s (%d alike)", c.name, t.children[last].name, last-i+1)
			size = "each " + size
			i = last
		}
		line := treeLine{name: strings.Repeat("  ", depth) + visible.Text(name), size: size}
		if c.tensor != nil {
			line.dtype, line.shape, line.boxes = c.tensor.DType.String(), inShape(c.tensor.Shape), c.boxes
		}
		if depth >= most && len(c.children) > 0 {
			line.name += fmt.Sprintf(" (%s)", plural(c.numTensors(), "tensor"))
			out = append(out, line)
			continue
		}
		out = append(out, line)
		out = append(out, c.lines(depth+1, most, all)...)
	}
	return out
}

func (t *moduleTree) numTensors() int {
	n := 0
	if t.tensor != nil {
		n = 1
	}
	for _, c := range t.children {
		n += c.numTensors()
	}
	return n
}

// follows reports whether b is the next one after a, of the same kind.
func follows(a, b *moduleTree) bool {
	x, err := strconv.Atoi(a.name)
	y, err2 := strconv.Atoi(b.name)
	return err == nil && err2 == nil && y == x+1 && a.kind == b.kind
}

// inShape is a shape for people.
func inShape(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// writeColumns writes rows in columns. A cell of the first column that leaves no room for the
// others within a width has a line of its own; right names the columns that end at
// one place.
func writeColumns(b *strings.Builder, rows [][]string, width int, right ...int) {
	if len(rows) == 0 {
		return
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row[1:] {
			widths[i+1] = max(widths[i+1], utf8.RuneCountInString(cell))
		}
	}
	room := width
	for _, w := range widths[1:] {
		if w > 0 {
			room -= w + 2
		}
	}
	room = max(room, 16)
	for _, row := range rows {
		if n := utf8.RuneCountInString(row[0]); n <= room {
			widths[0] = max(widths[0], n)
		}
	}
	for _, row := range rows {
		line := row[0]
		if utf8.RuneCountInString(line) > room && strings.Join(row[1:], "") != "" {
			b.WriteString(line + "\n")
			line = ""
		}
		end := utf8.RuneCountInString(line)
		line += strings.Repeat(" ", max(widths[0]-end, 0))
		for i, cell := range row[1:] {
			if widths[i+1] == 0 {
				continue
			}
			pad := strings.Repeat(" ", widths[i+1]-utf8.RuneCountInString(cell))
			if slices.Contains(right, i+1) {
				line += "  " + pad + cell
			} else {
				line += "  " + cell + pad
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}
