// SPDX-License-Identifier: Apache-2.0

//go:build !race

package native

import (
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// small is an all-reduce of 4 bytes.
var small = operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: 1}

// checks are what a rank of a small all-reduce does to find out whether the
// others have called the same, and nothing else would need.
func checks() map[string]func(seq uint64) bool {
	cfg := &Config{Group: "world"}
	h := &history{}
	all := map[string]func(uint64) bool{
		// The call stands before the data in the frame of the piece that goes
		// to the other rank and in that of the piece that comes.
		"sockets 2": func(seq uint64) bool {
			c := small
			c.Seq = seq
			if _, err := h.add(cfg, &c); err != nil {
				return false
			}
			var head [callSize]byte
			there, err := parseCall(appendCall(head[:0], &c))
			_, own := c.Wants(1)
			return err == nil && c.Matches(&there) && !own && c.HasFor(1) == c.Count
		},
	}
	for _, n := range []int{2, 8, flatLimit} {
		records := make([]record, n)
		all[fmt.Sprintf("memory %d", n)] = func(seq uint64) bool {
			c := small
			c.Seq = seq
			records[0].fill(&c)
			for r := 1; r < n; r++ {
				records[r] = records[0] // as that rank writes it
				if there := records[r].call(seq); !c.Matches(&there) {
					return false
				}
			}
			return true
		}
	}
	return all
}

// BenchmarkCheck measures what the check for mismatched calls costs a rank in
// a 4-byte all-reduce.
func BenchmarkCheck(b *testing.B) {
	for name, check := range checks() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if !check(uint64(i + 1)) {
					b.Fatal("a call does not match itself")
				}
			}
		})
	}
}

// TestCheckIsCheap holds the check under a microsecond: the least of some
// rounds, for other programs take time too.
func TestCheckIsCheap(t *testing.T) {
	for name, check := range checks() {
		const rounds, calls = 20, 1000
		least := time.Hour
		for range rounds {
			start := time.Now()
			for i := range calls {
				if !check(uint64(i + 1)) {
					t.Fatal("a call does not match itself")
				}
			}
			least = min(least, time.Since(start)/calls)
		}
		if least > time.Microsecond {
			t.Errorf("%s: the check takes %v, want less than 1 µs", name, least)
		}
	}
}
