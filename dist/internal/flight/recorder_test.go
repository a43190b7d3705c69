// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

func testLog(entries int) *Log {
	members := []fault.Member{{Rank: 0, Host: "a", PID: 1}, {Rank: 1, Host: "b", PID: 2}}
	return newSize(Who{Rank: 1, WorldSize: 2, Host: "b", PID: 2}, entries).Group("world", "world", 1, members, []int{0, 1}, nil)
}

func allReduce(seq uint64) *operation.Call {
	return &operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 4, Seq: seq}
}

func TestSite(t *testing.T) {
	l := testLog(64)
	_, _, line, _ := runtime.Caller(0)
	inlined := func(c *operation.Call) { l.Called(c, true) }
	l.Called(allReduce(1), true)
	inlined(allReduce(2))
	func() { inlined(allReduce(3)) }()
	l.Called(&operation.Call{Op: operation.Send, Root: 0, Seq: 3}, true)
	at := func(n int) string { return fmt.Sprintf(`^flight/recorder_test\.go:%d flight\.`, line+n) }
	for _, tc := range []struct {
		call operation.Call
		want string
	}{
		{*allReduce(1), at(2) + `TestSite$`},
		{operation.Call{Op: operation.Barrier, Seq: 2}, at(1) + `TestSite\.func1$`},
		{*allReduce(3), at(1) + `TestSite\.func1`},
		{operation.Call{Op: operation.Send, Root: 0, Seq: 3}, at(5) + `TestSite$`},
		{operation.Call{Op: operation.Recv, Root: 0, Seq: 3}, `^$`},
		{operation.Call{Op: operation.Send, Root: 1, Seq: 3}, `^$`},
		{*allReduce(4), `^$`},
	} {
		if got := l.Site(tc.call); !regexp.MustCompile(tc.want).MatchString(got) {
			t.Errorf("the site of %v %d is %q, want %s", tc.call, tc.call.Seq, got, tc.want)
		}
	}
}

// TestStacks: stacks that differ anywhere in the frames that count have sites of
// their own, calls from one stack share one.
func TestStacks(t *testing.T) {
	l := testLog(64)
	for i := range uint64(3) {
		l.Called(allReduce(i), true)
	}
	if n := len(l.r.sites); n != 1 {
		t.Errorf("%d sites for the calls of a loop, want 1", n)
	}
	for n := range 5 {
		deep(n, func() { l.Called(allReduce(9), true) })
	}
	if n := len(l.r.sites); n != 6 {
		t.Errorf("%d sites, want 6", n)
	}
	for n := range 2 * maxSites {
		l.r.newSite(uint64(n))
	}
	if n := len(l.r.sites); n > maxSites {
		t.Errorf("%d sites are kept, want at most %d", n, maxSites)
	}
}

// TestPendingStay: a call that has not ended is not pushed out by later ones,
// until nothing else is left to go.
func TestPendingStay(t *testing.T) {
	l := testLog(8)
	stuck := l.Called(&operation.Call{Op: operation.Recv, Root: 0, Seq: 1}, true)
	for seq := range uint64(100) {
		c := allReduce(seq + 1)
		l.Ended(l.Called(c, true), c, nil)
	}
	if l.r.find(stuck) == nil {
		t.Error("the receive has been forgotten")
	}
	for seq := range uint64(10 * maxProbes) {
		l.Called(&operation.Call{Op: operation.Send, Root: 0, Seq: seq}, false)
	}
	if n := len(l.r.entries); n != 8 {
		t.Errorf("the recorder has grown to %d entries", n)
	}
	l.Ended(stuck, &operation.Call{Op: operation.Recv}, nil) // of no more interest
}

func TestWaited(t *testing.T) {
	l := testLog(8)
	for seq := range uint64(20) {
		c := allReduce(seq + 1)
		tk := l.Called(c, seq%2 == 0)
		tk = l.Begun(tk)
		l.Ended(tk, c, nil)
	}
	c := allReduce(21)
	l.Ended(l.Called(c, true), c, errors.New("no"))
	send := &operation.Call{Op: operation.Send, Seq: 1}
	l.Ended(l.Called(send, true), send, nil)
	calls, ns := l.Waited()
	if calls != 20 || ns < 0 || ns > int64(1e9) {
		t.Errorf("%d calls that waited %d ns, want 20 and little", calls, ns)
	}
}

func TestNilLog(t *testing.T) {
	var l *Log
	tk := l.Begun(l.Called(allReduce(1), true))
	l.Numbered(tk, 1, 2)
	l.Ended(tk, allReduce(1), nil)
	l.Close()
	if calls, _ := l.Waited(); calls != 0 || l.Site(*allReduce(1)) != "" {
		t.Error("a nil log knows something")
	}
}

// TestConcurrent is for the race detector: lanes of a rank run at once.
func TestConcurrent(t *testing.T) {
	l := testLog(32)
	var wg sync.WaitGroup
	for peer := range 4 {
		wg.Go(func() {
			for seq := range uint64(500) {
				c := &operation.Call{Op: operation.Send, Root: peer, Seq: seq}
				tk := l.Begun(l.Called(c, false))
				_ = l.Site(*c)
				l.Ended(tk, c, nil)
			}
		})
	}
	wg.Wait()
}

// TestOwners: the line that is shown is the user's, or what is nearest to it.
func TestOwners(t *testing.T) {
	root := sourceRoot()
	for _, tc := range []struct {
		function, file string
		want           owner
	}{
		{"main.train", "/src/app/main.go", programs},
		{"example.com/app/model.(*Net).Step", "/src/app/model/net.go", programs},
		{"main.train", root + "examples/ddp/main.go", programs},
		{"github.com/cohort-ml/cohort/parallel.TestDDP.func1", root + "parallel/ddp_test.go", programs},
		{"main.newTrainCommand.func1", root + "cmd/cohort/train.go", commands},
		{"github.com/cohort-ml/cohort/dist.(*Group).AllReduce", root + "dist/reduce.go", nobodys},
		{"github.com/cohort-ml/cohort/dist/store.Serve", root + "dist/store/server.go", nobodys},
		{"github.com/cohort-ml/cohort/parallel.(*DDP).flush", root + "parallel/ddp.go", wrappers},
		{"github.com/cohort-ml/cohort/train.(*loop).step", root + "train/loop.go", recipes},
		{"sync.(*WaitGroup).Go.func1", "/go/src/sync/waitgroup.go", nobodys},
		{"slices.SortFunc[...]", "/go/src/slices/sort.go", nobodys},
		{"runtime.goexit", "/go/src/runtime/asm_amd64.s", nobodys},
		{"", "", nobodys},
	} {
		if got := ownerOf(tc.function, tc.file); got != tc.want {
			t.Errorf("%s in %s is of owner %d, want %d", tc.function, tc.file, got, tc.want)
		}
	}
}

// TestMovedStack: a stack that the runtime has moved, because it grew or a
// collection shrank it, is the same stack.
func TestMovedStack(t *testing.T) {
	l := testLog(16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 40 {
			if i%4 == 1 {
				deep(1000<<(i/8), func() {}) // grows
			} else if i%4 == 3 {
				runtime.GC() // shrinks
			}
			l.Called(allReduce(uint64(i)), true)
		}
	}()
	<-done
	if n := len(l.r.sites); n != 1 {
		t.Errorf("%d sites for the calls of a loop, want 1", n)
	}
}
