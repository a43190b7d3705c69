// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestRunCallsEachPieceOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := New(threads)
		for _, n := range []int{0, 1, 2, 3, 100} {
			counts := make([]atomic.Int32, n)
			p.Run(n, func(i int) { counts[i].Add(1) })
			for i := range counts {
				if got := counts[i].Load(); got != 1 {
					t.Errorf("threads=%d n=%d: piece %d ran %d times, want once", threads, n, i, got)
				}
			}
		}
		p.Close()
	}
}

// TestSlowWorker: the caller parks when a worker's last piece takes long.
func TestSlowWorker(t *testing.T) {
	p := New(2)
	defer p.Close()
	for range 100 {
		var begun, ended atomic.Int32
		p.Run(2, func(int) {
			wait := time.Duration(begun.Add(1)) * 2 * awaitLimit
			for start := time.Now(); time.Since(start) < wait; {
			}
			ended.Add(1)
		})
		if n := ended.Load(); n != 2 {
			t.Fatalf("Run returned when %d of 2 pieces had ended", n)
		}
	}
}

func TestPanicReachesTheCaller(t *testing.T) {
	p := New(4)
	defer p.Close()
	want := errors.New("boom")
	for range 50 {
		func() {
			defer func() {
				err, _ := recover().(error)
				if !errors.Is(err, want) {
					t.Errorf("recovered %v, want an error wrapping %v", err, want)
				}
			}()
			p.Run(16, func(i int) {
				if i == 11 {
					panic(want)
				}
			})
			t.Error("Run returned, want a panic")
		}()
	}
	var n atomic.Int32
	p.Run(10, func(int) { n.Add(1) })
	if n.Load() != 10 {
		t.Errorf("after a panic the pool ran %d of 10 pieces", n.Load())
	}
}

func TestConcurrentAndNestedLoops(t *testing.T) {
	p := New(3)
	defer p.Close()
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				p.Run(4, func(int) { p.Run(3, func(int) { total.Add(1) }) })
			}
		})
	}
	wg.Wait()
	if want := int64(8 * 200 * 12); total.Load() != want {
		t.Errorf("ran %d pieces, want %d", total.Load(), want)
	}
}

func BenchmarkRun(b *testing.B) {
	p := New(2)
	defer p.Close()
	for b.Loop() {
		p.Run(2, func(int) {})
	}
}
