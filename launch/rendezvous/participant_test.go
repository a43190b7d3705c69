// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestLineWriter: what the agent says is written in order, and where nobody reads it
// the agent goes on all the same.
func TestLineWriter(t *testing.T) {
	var out bytes.Buffer
	n := newLineWriter(&out)
	for i := range 3 {
		fmt.Fprintf(n, "%d\n", i)
	}
	if n.end(); out.String() != "0\n1\n2\n" {
		t.Errorf("written: %q", out.String())
	}
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		n, began := newLineWriter(w), time.Now()
		for range 10 * maxLines {
			fmt.Fprintln(n, "nobody reads this")
		}
		if n.end(); time.Since(began) != flushPatience {
			t.Errorf("it ended after %v, want %v", time.Since(began), flushPatience)
		}
		_ = r.Close() // ends the writer
	})
}
