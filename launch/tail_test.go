// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	tl := &tail{}
	for i := range 100 {
		tl.add([]byte(strings.Repeat("x", i) + "\r\n"))
	}
	got := tl.last()
	if len(got) != tailLines || len(got[len(got)-1]) != 99 || len(got[0]) != 100-tailLines {
		t.Errorf("%d lines, first %d and last %d long", len(got), len(got[0]), len(got[len(got)-1]))
	}
	for range 50 {
		tl.add(bytes.Repeat([]byte("y"), 100000))
	}
	size := 0
	for _, l := range tl.last() {
		size += len(l)
	}
	if size > tailBytes {
		t.Errorf("%d bytes kept, at most %d", size, tailBytes)
	}
}

// TestTailOfCrash: however many goroutines a Go program has, what it died of is kept.
func TestTailOfCrash(t *testing.T) {
	for _, numAfter := range []int{0, 3, 10, 15, 19, 20, 22, 27, 28, 500} {
		tl := &tail{}
		for i := range 30 {
			tl.add(fmt.Appendf(nil, "before %d\n", i))
		}
		tl.add([]byte("fatal error: all goroutines are asleep - deadlock!\n"))
		for i := range numAfter {
			tl.add(fmt.Appendf(nil, "stack %d\n", i))
		}
		got := tl.last()
		i := slices.Index(got, "fatal error: all goroutines are asleep - deadlock!")
		if i < 0 || len(got) > tailLines+crashLines+1 {
			t.Fatalf("%d lines after it: kept %q", numAfter, got)
		}
		// Nothing is missing, or it is said how much.
		want := 0
		for _, line := range got[i+1:] {
			if n, isGap := strings.CutPrefix(line, "… "); isGap {
				gap, err := strconv.Atoi(strings.TrimSuffix(n, " lines"))
				if err != nil || gap < 1 {
					t.Fatalf("%q", line)
				}
				want += gap
				continue
			}
			if line != fmt.Sprintf("stack %d", want) {
				t.Fatalf("%d lines after it: kept %q, want stack %d at %q", numAfter, got, want, line)
			}
			want++
		}
		if want != numAfter {
			t.Errorf("%d lines after it: kept %q", numAfter, got)
		}
	}
}
