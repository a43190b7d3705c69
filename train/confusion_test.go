// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestConfusion: the table has what was counted, and the picture is well-formed, with names
// escaped and a square for each pair of classes.
func TestConfusion(t *testing.T) {
	c := Confusion{[]string{"a<b", "dog"}, []int64{5, 1, 0, 7}}
	want := "a row is a class, a column what it was taken for\n     a<b  dog\na<b    5    1\ndog    0    7"
	if got := c.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for _, n := range []int{2, 9, 100} {
		c := Confusion{Counts: make([]int64, n*n)}
		for i := range n {
			c.Classes = append(c.Classes, fmt.Sprintf("class & %d", i))
			c.Counts[i*n+i] = 3
		}
		c.Counts[1] = 2
		c.Classes[n-1] += "\x01\xff" // names of folders may be anything
		if n == 9 && !strings.Contains(c.String(), "#9 class & 8") {
			t.Errorf("%v", c.String())
		}
		var b bytes.Buffer
		if err := c.WriteSVG(&b); err != nil {
			t.Fatal(err)
		}
		squares, told := 0, false
		for d := xml.NewDecoder(&b); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch e := token.(type) {
			case xml.StartElement:
				if e.Name.Local == "rect" {
					squares++
				}
			case xml.CharData:
				told = told || strings.HasPrefix(string(e), "class & 0 taken for class & 1") && strings.HasSuffix(string(e), ": 2 of 5")
			}
		}
		if squares != n*n+1 || !told {
			t.Errorf("%d classes: %d squares, the mistake is told: %v", n, squares, told)
		}
	}
}

// TestConfusionCounts: the matrix counts what the other figures count, row by row, and is left
// out where it would be large.
func TestConfusionCounts(t *testing.T) {
	c := newClassCounts(3)
	c.addClasses([]int64{0, 2, 2, 1, 2}, []int64{0, 1, 2, -1, 1})
	if want := []int64{1, 0, 0, 0, 0, 2, 0, 0, 1}; !slices.Equal(c.pairs, want) || c.seen != 4 || c.right != 2 {
		t.Errorf("%v of %d samples, %d right, want %v", c.pairs, c.seen, c.right, want)
	}
	if c := newClassCounts(maxConfusion + 1); c.pairs != nil {
		t.Errorf("a matrix of %d counts", len(c.pairs))
	}
}
