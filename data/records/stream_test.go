// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestStream: a wrong record is named by its line, and those behind it are read.
func TestStream(t *testing.T) {
	s := NewStream(t.Context(), "in", strings.NewReader("\xef\xbb\xbf{\"a\":1}\r\n\n{\"a\":\n7\n{\"a\":2}"))
	var got []any
	var wrong []int
	for {
		r, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		bad := (*Error)(nil)
		switch {
		case errors.As(err, &bad):
			wrong = append(wrong, bad.Line)
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, r["a"], s.Line())
		}
	}
	if text, _ := json.Marshal([]any{got, wrong}); string(text) != "[[1,1,2,5],[3,4]]" {
		t.Errorf("values with their lines, and wrong lines: %s", text)
	}
}

// FuzzStream: a record that is read is one for encoding/json too, and the stream ends.
func FuzzStream(f *testing.F) {
	f.Add("{\"a\":1}\n{\"b\":[\"x\",null]}\n")
	f.Add("\n\n{")
	f.Fuzz(func(t *testing.T, text string) {
		s := NewStream(t.Context(), "in", strings.NewReader(text))
		for n := 0; ; n++ {
			line, err := s.NextLine()
			if errors.Is(err, io.EOF) {
				return
			}
			if n > len(text) {
				t.Fatalf("%d lines of %d bytes", n, len(text))
			}
			if _, wrong := parseRecord(line, nil); err == nil && wrong == nil && !json.Valid(line) {
				t.Errorf("%q is no JSON", line)
			}
		}
	})
}
