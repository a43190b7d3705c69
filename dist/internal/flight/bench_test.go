// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"encoding/json"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// BenchmarkCollective is the recorder's whole cost for a collective that runs
// on its caller's goroutine: called and begun, ended.
func BenchmarkCollective(b *testing.B) {
	l := New(Who{WorldSize: 2}).Group("world", "world", 0, nil, nil, nil)
	c := operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: 1}
	deep(16, func() {
		b.ReportAllocs()
		for b.Loop() {
			c.Seq++
			t := l.Called(&c, true)
			l.Ended(t, &c, nil)
		}
	})
}

// BenchmarkAsync is the same for one that another goroutine runs: it begins
// some time after it was called.
func BenchmarkAsync(b *testing.B) {
	l := New(Who{WorldSize: 2}).Group("world", "world", 0, nil, nil, nil)
	c := operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: 1}
	deep(16, func() {
		b.ReportAllocs()
		for b.Loop() {
			c.Seq++
			t := l.Begun(l.Called(&c, false))
			l.Ended(t, &c, nil)
		}
	})
}

func BenchmarkHashStack(b *testing.B) {
	deep(16, func() {
		for b.Loop() {
			hashStack()
		}
	})
}

// deep calls f with so many frames below it.
//
//go:noinline
func deep(n int, f func()) int {
	if n == 0 {
		f()
		return 0
	}
	return deep(n-1, f) + 1
}

// BenchmarkDump is what a rank does when its group fails, but for the writing:
// a full recorder as JSON.
func BenchmarkDump(b *testing.B) {
	l := New(Who{WorldSize: 2}).Group("world", "world", 0, nil, nil, nil)
	c := operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: 1}
	for range 2 * NumEntries {
		c.Seq++
		l.Ended(l.Called(&c, true), &c, nil)
	}
	for b.Loop() {
		text, err := json.Marshal(l.Recorder().Dump("failed: as a test"))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(text)), "bytes")
	}
}
