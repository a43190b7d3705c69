// SPDX-License-Identifier: Apache-2.0

package table

import (
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestText: a wrong row is named by its line, and the rows behind it are read.
func TestText(t *testing.T) {
	r, err := NewTextReader("in", strings.NewReader("a,b\n1,2\n3\n\n4,x\"y\n\"5\n6\",7\n8,\"9"), Format{})
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	var lines, wrong []int
	for !r.Ended() {
		row, err := r.Next()
		bad := (*RowError)(nil)
		switch {
		case err == nil:
			_, line := r.Place()
			rows, lines = append(rows, slices.Clone(row)), append(lines, line)
		case errors.As(err, &bad):
			wrong = append(wrong, bad.Line)
		case !errors.Is(err, io.EOF):
			t.Fatal(err)
		}
	}
	if want := [][]string{{"1", "2"}, {"5\n6", "7"}}; len(rows) != 2 || !slices.Equal(rows[0], want[0]) || !slices.Equal(rows[1], want[1]) {
		t.Errorf("rows %q, want %q", rows, want)
	}
	if !slices.Equal(lines, []int{2, 6}) || !slices.Equal(wrong, []int{3, 5, 8}) {
		t.Errorf("rows in the lines %v, wrong ones in %v; want 2, 6 and 3, 5, 8", lines, wrong)
	}
}

// FuzzText holds rows against encoding/csv, and has wrong ones end.
func FuzzText(f *testing.F) {
	f.Add("a,b\n1,2\n3\n\"4\n5\",6\n")
	f.Add("a\n\"\"\"\"\n\"x")
	f.Fuzz(func(t *testing.T, text string) {
		want, wrong := csv.NewReader(strings.NewReader(text)).ReadAll()
		r, err := NewTextReader("in", strings.NewReader(text), Format{})
		if err != nil {
			return
		}
		var got [][]string
		clean := true
		for n := 0; ; n++ {
			row, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				if clean = false; n > len(text)+1 {
					t.Fatalf("%d errors of %d bytes: the reader does not go on", n, len(text))
				}
				if r.Ended() {
					break
				}
				continue
			}
			got = append(got, slices.Clone(row))
		}
		if wrong != nil || !clean || strings.Contains(text, "\r") || strings.HasPrefix(text, "\xef\xbb\xbf") {
			return
		}
		if len(got) != len(want)-1 {
			t.Fatalf("%d rows, want %d", len(got), len(want)-1)
		}
		for i, row := range got {
			if !slices.Equal(row, want[i+1]) {
				t.Fatalf("row %d is %q, want %q", i, row, want[i+1])
			}
		}
	})
}
