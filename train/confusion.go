// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Confusion counts what samples were taken for.
type Confusion struct {
	Classes []string
	Counts  []int64 // [true class, predicted class]
}

// at returns how often a class was taken for another.
func (c *Confusion) at(class, told int) int64 { return c.Counts[class*len(c.Classes)+told] }

// total returns how many samples a class has.
func (c *Confusion) total(class int) (n int64) {
	for told := range c.Classes {
		n += c.at(class, told)
	}
	return n
}

// shorten cuts a name to most letters.
func shorten(name string, most int) string {
	if utf8.RuneCountInString(name) <= most {
		return name
	}
	return string([]rune(name)[:most-1]) + "…"
}

// String is the matrix as a table, a row for each true class and a column for each predicted
// one. Columns have numbers where there are many classes with long names.
func (c *Confusion) String() string {
	const most = 12 // letters of a name
	width := 5
	for _, n := range c.Counts {
		width = max(width, len(strconv.FormatInt(n, 10))+1)
	}
	column := func(i int) string { return shorten(c.Classes[i], most) }
	for i := range c.Classes {
		width = max(width, utf8.RuneCountInString(column(i))+1)
	}
	numbered := len(c.Classes) > 8 && width > 7
	if numbered {
		width = 6
		column = func(i int) string { return "#" + strconv.Itoa(i+1) }
	}
	names := 0
	row := func(i int) string {
		if numbered {
			return fmt.Sprintf("%s %s", column(i), shorten(c.Classes[i], most))
		}
		return column(i)
	}
	for i := range c.Classes {
		names = max(names, utf8.RuneCountInString(row(i)))
	}
	var b strings.Builder
	pad := func(s string, n int) { b.WriteString(strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + s) }
	b.WriteString("a row is a class, a column what it was taken for\n")
	pad("", names)
	for i := range c.Classes {
		pad(column(i), width)
	}
	for i := range c.Classes {
		b.WriteByte('\n')
		b.WriteString(row(i) + strings.Repeat(" ", names-utf8.RuneCountInString(row(i))))
		for j := range c.Classes {
			pad(strconv.FormatInt(c.at(i, j), 10), width)
		}
	}
	return b.String()
}

// WriteSVG writes the matrix as a picture: a row for each true class, a column for each
// predicted one, darker where more of the class is.
func (c *Confusion) WriteSVG(w io.Writer) error {
	n := len(c.Classes)
	cell := min(40, max(6, 900/n))
	labels := cell >= 12
	left, top := 20, 60
	if labels {
		longest := 0
		for _, name := range c.Classes {
			longest = max(longest, utf8.RuneCountInString(shorten(name, 20)))
		}
		left, top = 30+7*longest, 70+5*longest
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="%d">`+"\n", left+n*cell+40, top+n*cell+20, min(12, cell-2))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n"+`<text x="%d" y="20" font-size="13">rows: the class; columns: what it was taken for</text>`+"\n", 10)
	for i, name := range c.Classes {
		total := max(1, c.total(i))
		if labels {
			text := escaped(shorten(name, 20))
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-6, top+i*cell+cell/2+4, text)
			fmt.Fprintf(&b, `<text transform="translate(%d,%d) rotate(-45)">%s</text>`+"\n", left+i*cell+cell/2, top-6, text)
		}
		for j, told := range c.Classes {
			count := c.at(i, j)
			share := float64(count) / float64(total)
			r, g, blue := shade(share, i == j)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="rgb(%d,%d,%d)" stroke="#ddd"><title>%s taken for %s: %d of %d</title></rect>`+"\n",
				left+j*cell, top+i*cell, cell, cell, r, g, blue, escaped(name), escaped(told), count, c.total(i))
			if count > 0 && cell >= 24 {
				ink := "black"
				if share > 0.5 {
					ink = "white"
				}
				fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="%s">%d</text>`+"\n", left+j*cell+cell/2, top+i*cell+cell/2+4, ink, count)
			}
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// escaped is a name as a picture holds it; what no XML may have becomes a mark.
func escaped(name string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(name)) // into memory, which does not fail
	return b.String()
}

// shade is white for nothing, and blue for what is right or red for what is wrong.
func shade(share float64, right bool) (r, g, b int) {
	to := [3]float64{178, 24, 43}
	if right {
		to = [3]float64{33, 102, 172}
	}
	mix := func(i int) int { return int(255 + (to[i]-255)*share) }
	return mix(0), mix(1), mix(2)
}
