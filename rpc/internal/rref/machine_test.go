// SPDX-License-Identifier: Apache-2.0

package rref

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// A message that comes late or twice does not bring a fork back.
func TestLateMessages(t *testing.T) {
	now := time.Unix(1, 0)
	owner, user := New(0, 0, DefaultConfig()), New(1, 0, DefaultConfig())
	h := owner.Own(now)
	p, _ := owner.Share(now, h, 1, now)
	fork, _ := user.Adopt(now, 0, p)
	add := user.Actions()[0].(Send).Message
	owner.Receive(now, 1, 1, add)
	user.Receive(now, 0, 1, owner.Actions()[0].(Send).Message)
	owner.Release(now, h)
	user.Release(now, fork)
	drop := user.Actions()[0].(Send).Message
	owner.Receive(now, 1, 1, drop)
	want := []Action{Free{h.Ref}, Send{1, Message{Kind: KindDropped, N: fork.N}}}
	if got := owner.Actions(); !reflect.DeepEqual(got, want) {
		t.Errorf("the last fork was dropped: %v, want %v", got, want)
	}
	owner.Receive(now, 1, 1, add)
	want = []Action{Send{1, Message{Kind: KindGone, N: fork.N}}}
	if got := owner.Actions(); !reflect.DeepEqual(got, want) {
		t.Errorf("the fork came again: %v, want %v", got, want)
	}
}

// A reference may be used up before the call that creates its value has come.
func TestReleasedBeforeCreated(t *testing.T) {
	now := time.Unix(1, 0)
	owner, user := New(0, 0, DefaultConfig()), New(1, 0, DefaultConfig())
	h := user.Remote(now, 0)
	user.Release(now, h)
	owner.Receive(now, 1, 1, user.Actions()[0].(Send).Message)
	if s := owner.Create(now, 1, h.Ref); s != Unwanted {
		t.Errorf("Create of a value whose reference has been released: %d, want Unwanted", s)
	}
	if owner.Busy() {
		t.Error("the owner waits for something")
	}
}

// A dead user's forks end with its lease, and no earlier.
func TestLease(t *testing.T) {
	c := DefaultConfig()
	now := time.Unix(1, 0)
	owner := New(0, 0, c)
	r := Ref{Owner: 0, Creator: 1, N: 1}
	owner.Create(now, 1, r)
	owner.Done(now, r)
	owner.Actions()
	end := now.Add(c.Lease)
	for ; !now.After(end); now = now.Add(c.Retry / 2) {
		owner.Tick(now)
		if a := owner.Actions(); len(a) > 0 {
			t.Fatalf("%v before the end of the lease: %v", end.Sub(now), a)
		}
	}
	owner.Tick(now)
	if got := owner.Actions(); !reflect.DeepEqual(got, []Action{Lapsed{1, 1}, Free{r}}) {
		t.Errorf("after the lease: %v, want %v", got, []Action{Lapsed{1, 1}, Free{r}})
	}
}

// Who only was away learns that its handles are of no use.
func TestBackAfterLease(t *testing.T) {
	c := DefaultConfig()
	now := time.Unix(1, 0)
	owner, user := New(0, 0, c), New(1, 0, c)
	h := user.Remote(now, 0)
	owner.Create(now, 1, h.Ref)
	user.Confirm(now, h, 1)
	for range 2*c.Lease/c.Retry + 2 {
		now = now.Add(c.Retry / 2)
		owner.Tick(now)
	}
	user.Tick(now)
	owner.Actions()
	for _, a := range user.Actions() {
		owner.Receive(now, 1, 1, a.(Send).Message)
	}
	for _, a := range owner.Actions() {
		user.Receive(now, 0, 1, a.(Send).Message)
	}
	if got := user.Actions(); !reflect.DeepEqual(got, []Action{Lost{h, Expired}}) {
		t.Errorf("after an absence: %v, want %v", got, []Action{Lost{h, Expired}})
	}
}

// Who leaves takes its forks along, and those of others of its values are lost.
func TestLeave(t *testing.T) {
	now := time.Unix(1, 0)
	a, b := New(0, 0, DefaultConfig()), New(1, 0, DefaultConfig())
	atB := a.Remote(now, 1)
	b.Create(now, 0, atB.Ref)
	b.Done(now, atB.Ref)
	a.Confirm(now, atB, 1)
	atA := b.Remote(now, 0)
	a.Create(now, 1, atA.Ref)
	a.Done(now, atA.Ref)
	b.Confirm(now, atA, 1)
	a.Actions()
	a.Receive(now, 1, 1, Message{Kind: KindLeave})
	want := []Action{Free{atA.Ref}, Lost{atB, Left}}
	if got := a.Actions(); !reflect.DeepEqual(got, want) {
		t.Errorf("after the other has left: %v, want %v", got, want)
	}
	if a.Busy() {
		t.Error("something is still waited for")
	}
}

// A user that is started again and again takes the forks of each of its instances
// along a lease after that has ended, however soon the next one follows.
func TestInstances(t *testing.T) {
	c := DefaultConfig()
	now := time.Unix(1, 0)
	owner := New(0, 0, c)
	const lives = 6
	var freed []uint64
	for i := range uint64(lives) {
		instance := 1000 * (i + 1)
		r := Ref{Owner: 0, Creator: 1, N: instance + 1}
		owner.Create(now, 1, r)
		owner.Done(now, r)
		for range c.Lease / 2 / c.Beat {
			owner.Receive(now, 1, instance, Message{Kind: KindBeat, N: instance})
			now = now.Add(c.Beat)
			owner.Tick(now)
			for _, a := range owner.Actions() {
				if f, ok := a.(Free); ok {
					freed = append(freed, f.Ref.N)
				}
			}
		}
	}
	// The last three have ended less than a lease ago, or not at all.
	if want := []uint64{1001, 2001, 3001}; !slices.Equal(freed, want) {
		t.Errorf("freed while the next ones ran: %d, want %d", freed, want)
	}
	for i := range uint64(3 * maxDooms) {
		owner.Receive(now, 1, 1_000_000+i, Message{Kind: KindBeat})
	}
	if n := len(owner.peers[1].dooms); n != maxDooms {
		t.Errorf("%d instances are waited for, want %d", n, maxDooms)
	}
	for range 2*c.Lease/c.Retry + 2 {
		now = now.Add(c.Retry / 2)
		owner.Tick(now)
	}
	if owner.Busy() {
		t.Error("something is left")
	}
}

func TestSpans(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var s spans
		in := map[uint64]bool{0: true}
		for range 60 {
			n := uint64(rng.IntN(40))
			if rng.IntN(10) == 0 {
				n /= 3
				s.trim(n)
				for i := range n + 1 {
					in[i] = true
				}
			} else {
				s.add(n)
				in[n] = true
			}
			for i := range uint64(41) {
				if s.has(i) != in[i] {
					t.Fatalf("seed %d: has(%d) is %v, want %v: %+v", seed, i, s.has(i), in[i], s)
				}
			}
			last := s.through
			for _, r := range s.runs {
				if r.lo <= last+1 || r.hi < r.lo {
					t.Fatalf("seed %d: runs touch: %+v", seed, s)
				}
				last = r.hi
			}
		}
	}
	var s spans
	for i := range uint64(3 * maxRuns) {
		s.add(10 + 2*i)
	}
	if len(s.runs) > maxRuns {
		t.Errorf("%d runs, the limit is %d", len(s.runs), maxRuns)
	}
}

// FuzzMessages lets another node say anything. The machine may forget that
// node's own forks, but keeps what its own program and a third node have.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{1, 1, 1, 0, 4, 1, 0, 0, 8, 9, 0, 0, 6, 1, 1, 1})
	f.Add([]byte{1, 255, 2, 1, 8, 255, 0, 0, 4, 255, 0, 0, 3, 1, 0, 0, 9, 255, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		now := time.Unix(1, 0)
		c := DefaultConfig()
		c.Limit = 8
		m := New(0, 0, c)
		own := m.Own(now)
		third := Ref{Owner: 0, Creator: 2, N: 1}
		m.Create(now, 2, third)
		m.Done(now, third)
		ours := m.Remote(now, 2)
		m.Confirm(now, ours, 1)
		word := func(x byte) uint64 {
			if x > 250 {
				return ^uint64(0) - uint64(255-x)
			}
			return uint64(x)
		}
		for ; len(b) >= 4; b = b[4:] {
			r := Ref{Owner: Node(b[3] & 1), Creator: Node(b[3] >> 1 & 3), N: word(b[2])}
			switch k := Kind(b[0] & 15); k {
			case 13:
				m.Create(now, 1, r)
			case 14:
				m.Adopt(now, 1, Pass{Ref: r, From: Node(b[3] >> 7), N: word(b[1])})
			case 15:
				m.Tick(now)
			default:
				m.Receive(now, 1, 1, Message{Kind: k, N: word(b[1]), Ref: r, Pass: uint64(b[2])})
			}
			for _, a := range m.Actions() {
				if fr, ok := a.(Free); ok && (fr.Ref == own.Ref || fr.Ref == third) {
					t.Fatalf("another node freed %v", fr.Ref)
				}
				if l, ok := a.(Lost); ok && l.Handle == ours {
					t.Fatal("another node made a handle on a third lost")
				}
			}
		}
		for _, o := range m.owned {
			if o.holds < 0 || o.forks < 0 || o.passes < 0 {
				t.Fatalf("counts below zero: %+v", o)
			}
		}
		if p := m.peers[1]; p != nil && len(p.forks) > c.Limit {
			t.Fatalf("%d forks, the limit is %d", len(p.forks), c.Limit)
		}
	})
}
