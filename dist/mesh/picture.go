// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// How much of a mesh a picture shows.
const (
	maxColumns = 16
	maxRows    = 64
)

// String returns a picture of the mesh: which rank of the job is where. The last axis goes to the
// right, the others go down. A star marks this rank.
//
//	replicate 2 × fsdp 4
//	             fsdp 0  1  2  3
//	replicate 0       0  1  2* 3
//	replicate 1       4  5  6  7
func (m *Mesh) String() string {
	if m.ranks == nil {
		return m.equation() + ", this rank is outside"
	}
	numbers := m.ranks
	if m.base != nil {
		numbers = nil
		job := m.base.Ranks()
		for _, r := range m.ranks {
			numbers = append(numbers, job[r])
		}
	}
	head := m.equation()
	if !m.IsMember() {
		head += ", this rank is outside"
	}
	return head + "\n" + m.grid(func(rank int) string {
		mark := ""
		if rank == m.rank {
			mark = "*"
		}
		return strconv.Itoa(numbers[rank]) + mark
	})
}

// String returns the layout in one line, as errors show it: "[8 4] as Shard(0), Replicate over
// replicate 2 × fsdp 4".
func (l Layout) String() string {
	if l.Mesh == nil {
		return fmt.Sprintf("%v, not spread", l.Shape)
	}
	names := make([]string, len(l.Placements))
	for i, p := range l.Placements {
		names[i] = p.String()
	}
	return fmt.Sprintf("%v as %s over %s", l.Shape, strings.Join(names, ", "), l.Mesh.equation())
}

// Picture shows which part of the tensor each rank of the mesh holds, in the grid of
// [Mesh.String]. Ranges are Python's: 0:2 stands for the indices 0 and 1, a colon for a whole
// dim, + for further ranges of a strided shard, and a dash for no element.
//
//	[5 4] as Shard(0), Shard(1) over dp 2 × tp 2
//	          tp 0         1
//	dp 0  0:3, 0:2  0:3, 2:4
//	dp 1  3:5, 0:2  3:5, 2:4
func (l Layout) Picture() string {
	if l.Mesh == nil {
		return l.String()
	}
	if err := l.Validate(); err != nil {
		return l.String() + "\n" + err.Error() + "\n"
	}
	shape := l.Mesh.Shape()
	return l.String() + "\n" + l.Mesh.grid(func(rank int) string {
		spans, err := spansOf(l.Shape, shape, l.Placements, coordinateOf(shape, rank))
		if err != nil {
			return "?"
		}
		return ranges(l.Shape, spans)
	})
}

// ranges is what a rank holds, as a picture shows it.
func ranges(shape []int, spans [][]span) string {
	if len(spans) == 0 {
		return "all"
	}
	var dims []string
	for d, ss := range spans {
		switch {
		case len(ss) == 0:
			return "–"
		case ss[0].length == shape[d]:
			dims = append(dims, ":")
		default:
			var parts []string
			for _, s := range ss {
				parts = append(parts, fmt.Sprintf("%d:%d", s.start, s.start+s.length))
			}
			dims = append(dims, strings.Join(parts, "+"))
		}
	}
	return strings.Join(dims, ", ")
}

// grid draws the mesh with a text for each rank. What would be too wide or too long ends in dots.
func (m *Mesh) grid(text func(rank int) string) string {
	shape := m.Shape()
	columns, across := 1, ""
	if n := len(shape); n > 0 {
		columns, across = shape[n-1], m.axes[n-1].Name+" "
	}
	rows := m.Size() / columns
	table := [][]string{{""}}
	for c := range min(columns, maxColumns) {
		table[0] = append(table[0], strconv.Itoa(c))
	}
	table[0][1] = across + "0"
	for r := range min(rows, maxRows) {
		line := []string{m.rowName(r)}
		for c := range min(columns, maxColumns) {
			line = append(line, text(r*columns+c))
		}
		table = append(table, line)
	}
	if len(shape) == 0 {
		table = table[1:]
	}
	return align(table, columns > maxColumns, rows > maxRows)
}

// rowName names a row of the grid by the coordinates on all axes but the last.
func (m *Mesh) rowName(row int) string {
	if len(m.axes) < 2 {
		return ""
	}
	outer := m.axes[:len(m.axes)-1]
	var names []string
	for i, c := range coordinateOf(m.Shape()[:len(outer)], row) {
		names = append(names, fmt.Sprintf("%s %d", outer[i].Name, c))
	}
	return strings.Join(names, " ")
}

// align writes a table, its first column flush left and the others flush right, where a star at
// the end of a number sticks out.
func align(table [][]string, moreRight, moreBelow bool) string {
	gap := "  "
	stars := slices.ContainsFunc(table, func(line []string) bool {
		return slices.ContainsFunc(line, func(s string) bool { return strings.HasSuffix(s, "*") })
	})
	if stars {
		gap = " " // a place for a star stands before it
	}
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for c, s := range line {
			widths[c] = max(widths[c], utf8.RuneCountInString(strings.TrimSuffix(s, "*")))
		}
	}
	var b strings.Builder
	for _, line := range table {
		var row strings.Builder
		for c, s := range line {
			body := strings.TrimSuffix(s, "*")
			fill := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(body))
			switch {
			case c == 0:
				row.WriteString(body + fill)
				continue
			case c == 1 && widths[0] > 0:
				row.WriteString("  ")
			case c > 1:
				row.WriteString(gap)
			}
			row.WriteString(fill + s)
			if stars && body == s {
				row.WriteByte(' ')
			}
		}
		if moreRight {
			row.WriteString(" …")
		}
		b.WriteString(strings.TrimRight(row.String(), " ") + "\n")
	}
	if moreBelow {
		b.WriteString("…\n")
	}
	return b.String()
}
