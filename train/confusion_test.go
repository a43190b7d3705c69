// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
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
				told = told || string(e) == "class & 0 taken for class & 1: 2 of 5"
			}
		}
		if squares != n*n+1 || !told {
			t.Errorf("%d classes: %d squares, the mistake is told: %v", n, squares, told)
		}
	}
}
