// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/rpc/internal/rref"
	"github.com/cohort-ml/cohort/tensor"
)

// counterValue is a value that cannot travel.
type counterValue struct{ n int }

var (
	refAdd   = NewMethod[[2]int, int]("ref.add")
	refOnes  = NewMethod[int, *tensor.Tensor]("ref.ones")
	refFail  = NewMethod[string, int]("ref.fail")
	refPass  = NewMethod[*RRef[int], int]("ref.pass")
	refBack  = NewMethod[*RRef[int], *RRef[int]]("ref.back")
	refKeep  = NewMethod[*RRef[int], struct{}]("ref.keep")
	refMake  = NewMaker[int, *counterValue]("ref.counter")
	refCount = NewOn[*counterValue, int, int]("ref.count")
	refPair  = NewOn[*counterValue, int, [2]int]("ref.pair")
	refSlow  = NewMethod[struct{}, int]("ref.slow")
)

// errTest is known to all agents of these tests.
var errTest = errors.New("a failure of the test")

// refHandlers serve the methods of these tests.
func refHandlers(hold chan<- *RRef[int]) []Option {
	return []Option{
		WithError("rref.test", errTest),
		Serve(refAdd, func(_ context.Context, in [2]int) (int, error) { return in[0] + in[1], nil }),
		Serve(refOnes, func(_ context.Context, n int) (*tensor.Tensor, error) { return tensor.Full(1, n), nil }),
		Serve(refFail, func(context.Context, string) (int, error) { return 0, errTest }),
		Serve(refPass, func(ctx context.Context, r *RRef[int]) (int, error) {
			defer r.Release()
			return r.ToHere(ctx)
		}),
		Serve(refBack, func(_ context.Context, r *RRef[int]) (*RRef[int], error) { return r, nil }),
		Serve(refKeep, func(_ context.Context, r *RRef[int]) (struct{}, error) {
			hold <- r
			return struct{}{}, nil
		}),
		ServeMaker(refMake, func(_ context.Context, n int) (*counterValue, error) {
			if n < 0 {
				return nil, errTest
			}
			return &counterValue{n: n}, nil
		}),
		ServeOn(refCount, func(_ context.Context, c *counterValue, by int) (int, error) {
			c.n += by
			return c.n, nil
		}, WithMethodConcurrency(1)),
		ServeOn(refPair, func(_ context.Context, c *counterValue, by int) ([2]int, error) { return [2]int{c.n, by}, nil }),
	}
}

func refAgents(t testing.TB, kind string, n int, opts ...Option) ([]*Agent, chan *RRef[int]) {
	hold := make(chan *RRef[int], 16)
	return agents(t, kind, n, append(refHandlers(hold), opts...)...), hold
}

// empty waits until no agent has anything to do with a reference.
func empty(t testing.TB, all ...*Agent) {
	t.Helper()
	for _, a := range all {
		agenttest.Eventually(t, a.name+" has no references", func() bool {
			r := a.References()
			return r.Values == 0 && r.Held == 0 && len(r.By) == 0
		})
	}
}

func TestRemote(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		ctx := t.Context()
		all, _ := refAgents(t, kind, 2)
		a, b := all[0], all[1].Name()
		ref, err := refAdd.Remote(ctx, a.Peer(b), [2]int{2, 3})
		if err != nil {
			t.Fatal(err)
		}
		if ref.IsOwner() || ref.OwnerName() != b || ref.Owner() != a.Peer(b) {
			t.Errorf("the owner is %q", ref.OwnerName())
		}
		for range 2 {
			if v, err := ref.ToHere(ctx); err != nil || v != 5 {
				t.Errorf("ToHere: %d, %v, want 5", v, err)
			}
		}
		if _, err := ref.LocalValue(); err == nil || !strings.Contains(err.Error(), b) {
			t.Errorf("LocalValue elsewhere: %v, want an error that names the owner", err)
		}
		ones, err := refOnes.Remote(ctx, a.PeerRank(1), 100_000)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := ones.ToHere(ctx); err != nil || v.NumElems() != 100_000 || v.Float32s()[99_999] != 1 {
			t.Errorf("ToHere of a tensor: %v", err)
		}
		if n := all[1].References().By["w0"]; n != 2 {
			t.Errorf("w0 has %d references at w1, want 2", n)
		}
		ref.Release()
		ones.Release()
		ones.Release()
		if _, err := ref.ToHere(ctx); KindOf(err) != KindReleased || !strings.Contains(err.Error(), "rref_test.go") {
			t.Errorf("ToHere after Release: %v, want kind %q and where it was made", err, KindReleased)
		}
		empty(t, all...)
	})
}

func TestRemoteAtSelf(t *testing.T) {
	ctx := t.Context()
	all, _ := refAgents(t, "pipe", 1)
	a := all[0]
	ref, err := refAdd.Remote(ctx, a.Self(), [2]int{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := ref.ToHere(ctx); err != nil || v != 5 || !ref.IsOwner() {
		t.Errorf("ToHere: %d, %v, owner %v; want 5", v, err, ref.IsOwner())
	}
	if v, err := ref.LocalValue(); err != nil || v != 5 {
		t.Errorf("LocalValue: %d, %v, want 5", v, err)
	}
	if v, err := refPass.Call(ctx, a.Self(), ref); err != nil || v != 5 {
		t.Errorf("passed to itself: %d, %v, want 5", v, err)
	}
	bad, err := refFail.Remote(ctx, a.Self(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bad.ToHere(ctx); !errors.Is(err, errTest) {
		t.Errorf("ToHere of what failed: %v, want %v", err, errTest)
	}
	ref.Release()
	bad.Release()
	empty(t, a)
}

// A reference goes on to a third agent, whose is good after the first was released.
func TestPassedOn(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		ctx := t.Context()
		all, hold := refAgents(t, kind, 3)
		a := all[0]
		ref, err := refAdd.Remote(ctx, a.Peer("w1"), [2]int{20, 22})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"w2", "w1", "w0"} {
			if v, err := refPass.Call(ctx, a.Peer(to), ref); err != nil || v != 42 {
				t.Errorf("passed to %s: %d, %v, want 42", to, v, err)
			}
		}
		back, err := refBack.Call(ctx, a.Peer("w2"), ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := refKeep.Call(ctx, a.Peer("w2"), back); err != nil {
			t.Fatal(err)
		}
		ref.Release()
		back.Release()
		kept := <-hold
		if v, err := kept.ToHere(ctx); err != nil || v != 42 || kept.OwnerName() != "w1" {
			t.Errorf("the reference that w2 kept: %d, %v, want 42", v, err)
		}
		agenttest.Eventually(t, "w2 alone has a reference at w1", func() bool {
			by := all[1].References().By
			return by["w2"] == 1 && by["w0"] == 0
		})
		kept.Release()
		empty(t, all...)
	})
}

// An owner passes its own value, and sees it again as its own.
func TestOwnValue(t *testing.T) {
	ctx := t.Context()
	all, _ := refAgents(t, "pipe", 2)
	ref := NewRRef(all[0], 7)
	back, err := refBack.Call(ctx, all[0].Peer("w1"), ref)
	if err != nil {
		t.Fatal(err)
	}
	ref.Release()
	if v, err := back.LocalValue(); err != nil || v != 7 {
		t.Errorf("LocalValue: %d, %v, want 7", v, err)
	}
	back.Release()
	empty(t, all...)
}

func TestOnMethod(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		ctx := t.Context()
		all, _ := refAgents(t, kind, 2)
		a := all[0]
		ref, err := refMake.Remote(ctx, a.Peer("w1"), 100)
		if err != nil {
			t.Fatal(err)
		}
		var fs []*Future[int]
		for range 10 {
			fs = append(fs, refCount.Async(ctx, ref, 1))
		}
		if _, err := WaitAll(ctx, fs...); err != nil {
			t.Fatal(err)
		}
		if n, err := refCount.Call(ctx, ref, 5); err != nil || n != 115 {
			t.Errorf("count: %d, %v, want 115", n, err)
		}
		pair, err := refPair.Remote(ctx, ref, 3)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := pair.ToHere(ctx); err != nil || v != [2]int{115, 3} {
			t.Errorf("a result that stayed: %v, %v, want [115 3]", v, err)
		}
		if _, err := ref.ToHere(ctx); KindOf(err) != KindTypes {
			t.Errorf("ToHere of a value that cannot travel: %v, want kind %q", err, KindTypes)
		}
		ref.Release()
		pair.Release()
		if _, err := refCount.Call(ctx, ref, 1); KindOf(err) != KindReleased {
			t.Errorf("a method on a released reference: %v, want kind %q", err, KindReleased)
		}
		empty(t, all...)
	})
}

// The error of a call whose result was to stay is that of every use of it.
func TestRemoteFails(t *testing.T) {
	ctx := t.Context()
	all, hold := refAgents(t, "pipe", 3)
	a := all[0]
	ref, err := refFail.Remote(ctx, a.Peer("w1"), "x")
	if err != nil {
		t.Fatal(err)
	}
	_, keepErr := refKeep.Call(ctx, a.Peer("w2"), ref) // it may have failed by then
	if _, err := ref.ToHere(ctx); !errors.Is(err, errTest) || !strings.Contains(err.Error(), "ref.fail") {
		t.Errorf("ToHere: %v, want %v, and the method", err, errTest)
	}
	if keepErr == nil {
		kept := <-hold
		if _, err := kept.ToHere(ctx); err == nil {
			t.Error("ToHere elsewhere: no error")
		}
		kept.Release()
	}
	made, err := refMake.Remote(ctx, a.Peer("w1"), -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := refCount.Call(ctx, made, 1); !errors.Is(err, errTest) {
		t.Errorf("a method on what was never made: %v, want %v", err, errTest)
	}
	none, err := NewMethod[int, int]("ref.nobody").Remote(ctx, a.Peer("w1"), 1)
	if err == nil {
		_, err = none.ToHere(ctx)
	}
	if KindOf(err) != KindUnknownMethod {
		t.Errorf("a method that there is not: %v, want kind %q", err, KindUnknownMethod)
	}
	if _, err := refAdd.Remote(ctx, a.Peer("nobody"), [2]int{}); KindOf(err) != KindUnknownPeer {
		t.Errorf("an agent that there is not: %v, want kind %q", err, KindUnknownPeer)
	}
	if _, err := refMake.method.Call(ctx, a.Peer("w1"), 1); KindOf(err) != KindTypes {
		t.Errorf("a maker that is called: %v, want kind %q", err, KindTypes)
	}
	empty(t, all...)
}

// A value that is being made is waited for, at its owner and elsewhere.
func TestNotMadeYet(t *testing.T) {
	ctx := t.Context()
	made := make(chan struct{})
	all, hold := refAgents(t, "pipe", 3, Serve(refSlow, func(ctx context.Context, _ struct{}) (int, error) {
		select {
		case <-made:
			return 1, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}))
	a := all[0]
	ref, err := refSlow.Remote(ctx, a.Peer("w1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := refKeep.Call(ctx, a.Peer("w1"), ref); err != nil {
		t.Fatal(err)
	}
	atOwner := <-hold
	if _, err := atOwner.LocalValue(); err == nil {
		t.Error("LocalValue of what is being made: no error")
	}
	time.AfterFunc(50*time.Millisecond, func() { made <- struct{}{} }) // it is waited for by then
	if v, err := refPass.Call(ctx, a.Peer("w2"), ref); err != nil || v != 1 {
		t.Errorf("ToHere by a third: %d, %v", v, err)
	}
	if v, err := atOwner.ToHere(ctx); err != nil || v != 1 {
		t.Errorf("ToHere by the owner: %d, %v", v, err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	late, err := refSlow.Remote(ctx, a.Peer("w1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.ToHere(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ToHere with less time than it takes: %v", err)
	}
	made <- struct{}{}
	late.Release()
	ref.Release()
	atOwner.Release()
	empty(t, all...)
}

// What the program forgets is released when the garbage collector finds it.
func TestForgotten(t *testing.T) {
	ctx := t.Context()
	all, _ := refAgents(t, "pipe", 2)
	for range 5 {
		ref, err := refAdd.Remote(ctx, all[0].Peer("w1"), [2]int{1, 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ref.ToHere(ctx); err != nil {
			t.Fatal(err)
		}
	}
	empty(t, all...)
}

// Notes that cannot be read are as if they were lost.
func FuzzNotes(f *testing.F) {
	f.Add(encodeNotes(7, []rref.Message{{Kind: rref.KindBeat, N: 3}, {Kind: rref.KindAdd, N: 9, Ref: rref.Ref{Owner: 1, Creator: 2, N: 4}, Pass: 5}}))
	f.Add([]byte{0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		instance, messages, err := decodeNotes(b)
		if err != nil {
			return
		}
		again, same, err := decodeNotes(encodeNotes(instance, messages))
		if err != nil || again != instance || len(same) != len(messages) {
			t.Fatalf("%v of instance %d became %v of instance %d: %v", messages, instance, same, again, err)
		}
		for i, m := range messages {
			if m.Kind != rref.KindAdd {
				m.Ref, m.Pass = rref.Ref{}, 0
			}
			if same[i] != m {
				t.Fatalf("%v became %v", m, same[i])
			}
		}
	})
}

func TestLeaks(t *testing.T) {
	ctx := t.Context()
	all, _ := refAgents(t, "pipe", 2)
	ref, err := refAdd.Remote(ctx, all[0].Peer("w1"), [2]int{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ref.ToHere(ctx); err != nil {
		t.Fatal(err)
	}
	got := all[0].refs.leaks()
	if len(got) != 1 || !strings.Contains(got[0], "a reference to a int at w1, made at rref_test.go:") {
		t.Errorf("leaks of the user: %q", got)
	}
	if got := all[1].refs.leaks(); len(got) != 1 || !strings.Contains(got[0], "w0 (1)") {
		t.Errorf("leaks of the owner: %q", got)
	}
	ref.Release()
	empty(t, all...)
	if got := append(all[0].refs.leaks(), all[1].refs.leaks()...); len(got) != 0 {
		t.Errorf("leaks after the release: %q", got)
	}
}

// When an agent closes, its references end at once, and so do those to its values.
func TestClosedAgent(t *testing.T) {
	ctx := t.Context()
	all, _ := refAgents(t, "pipe", 2)
	a, b := all[0], all[1]
	there, err := refAdd.Remote(ctx, a.Peer("w1"), [2]int{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	back, err := refAdd.Remote(ctx, b.Peer("w0"), [2]int{1, 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*RRef[int]{there, back} {
		if _, err := r.ToHere(ctx); err != nil {
			t.Fatal(err)
		}
	}
	agenttest.Eventually(t, "both are confirmed", func() bool {
		select {
		case <-there.s.started:
			return a.References().By["w1"] == 1
		default:
			return false
		}
	})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	empty(t, a)
	if _, err := there.ToHere(ctx); KindOf(err) != KindGone || !strings.Contains(err.Error(), "w1") {
		t.Errorf("ToHere from an agent that has left: %v, want kind %q", err, KindGone)
	}
	if _, err := back.ToHere(ctx); KindOf(err) != KindClosed {
		t.Errorf("ToHere of a closed agent: %v, want kind %q", err, KindClosed)
	}
}

// BenchmarkRemote leaves a number at another agent, fetches it and releases it;
// BenchmarkOnMethod calls a method on a value there.
func BenchmarkRemote(b *testing.B) {
	all, _ := refAgents(b, "unix", 2)
	peer := all[0].Peer("w1")
	b.ReportAllocs()
	for b.Loop() {
		ref, err := refAdd.Remote(b.Context(), peer, [2]int{1, 2})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ref.ToHere(b.Context()); err != nil {
			b.Fatal(err)
		}
		ref.Release()
	}
	empty(b, all...)
}

func BenchmarkOnMethod(b *testing.B) {
	all, _ := refAgents(b, "unix", 2)
	ref, err := refMake.Remote(b.Context(), all[0].Peer("w1"), 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := refCount.Call(b.Context(), ref, 1); err != nil {
			b.Fatal(err)
		}
	}
	ref.Release()
	empty(b, all...)
}
