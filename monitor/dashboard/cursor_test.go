// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"reflect"
	"testing"
)

// FuzzCursor: any text is a cursor of as many runs as there are, or of nothing.
func FuzzCursor(f *testing.F) {
	f.Add("3_1.2.3.4.5.6.7.8.9.0.1_1.2.3.4.5.6.7.8.9.0.1", 2)
	f.Add("", 0)
	f.Add("1_1.1", 1)
	f.Fuzz(func(t *testing.T, text string, n int) {
		n = min(max(n, 0), 64)
		c := parseCursor(text, n)
		if len(c.runs) != n {
			t.Fatalf("%d runs, want %d", len(c.runs), n)
		}
		for i := range c.runs {
			for _, v := range c.runs[i].fields()[1:] {
				if *v < 0 {
					t.Fatalf("%+v", c.runs[i])
				}
			}
		}
		if n > 0 && c.runs[0].version >= 0 {
			if again := parseCursor(c.String(), n); !reflect.DeepEqual(again, c) {
				t.Fatalf("%+v is %s is %+v", c, c, again)
			}
		}
	})
}
