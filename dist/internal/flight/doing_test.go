// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// TestDoing asks a rank with calls on two groups what it is doing.
func TestDoing(t *testing.T) {
	r := newSize(Who{}, 64)
	a := r.Group("a", "key a", 0, nil, nil, nil)
	b := r.Group("b", "key b", 0, nil, nil, nil)
	want := func(text string, blocking bool) {
		t.Helper()
		d := a.Doing()
		if !strings.HasPrefix(d.String(), text) || d.Blocking != blocking {
			t.Errorf("it says %q, blocking %v; want %q, %v", d, d.Blocking, text, blocking)
		}
	}
	want("it has called nothing", false)
	formed := r.Group("world", "key c", 0, nil, nil, nil)
	formed.Forms()
	forming := operation.Call{Op: operation.Barrier, Seq: 1}
	formed.Ended(formed.Called(&forming, true), &forming, nil)
	want(`its last call was init of group "world", at flight/doing_test.go:`, true)
	barrier := operation.Call{Op: operation.Barrier, Seq: 1}
	first := a.Called(&barrier, true)
	want(`it is in barrier, number 1 of group "a", at flight/doing_test.go:`, true)
	if d := b.Doing(); d.Key != a.Key() || d.Key == b.Key() || d.Call.Seq != a.LastCalled() {
		t.Errorf("%+v", d)
	}
	later := allReduceOf(4)
	later.Background = true
	second := b.Called(&later, true)
	want(`it is in barrier, number 1 of group "a"`, true) // for which a goroutine waits
	a.Ended(first, &barrier, nil)
	want(`it is in all_reduce sum of 4 float32, number 2 of group "b"`, false)
	b.Ended(second, &later, errors.New("no"))
	want(`its last call was all_reduce sum of 4 float32, number 2 of group "b"`, false)
}

func allReduceOf(n int) operation.Call {
	return operation.Call{Op: operation.AllReduce, Reduce: operation.Sum, DType: operation.Float32, Count: n, Seq: 2}
}

// TestSolo tells a rank all of whose calls come from one goroutine.
func TestSolo(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("goroutines are not told apart here")
	}
	l := newSize(Who{}, 64).Group("a", "key a", 0, nil, nil, nil)
	c := operation.Call{Op: operation.Barrier, Seq: 1}
	for range 3 {
		l.Called(&c, true)
	}
	if !l.Doing().Solo {
		t.Error("three calls of one goroutine are taken for those of several")
	}
	done := make(chan struct{})
	go func() {
		l.Called(&c, true)
		close(done)
	}()
	<-done
	l.Called(&c, true)
	if l.Doing().Solo {
		t.Error("the calls of two goroutines are taken for those of one")
	}
}
