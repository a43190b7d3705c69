// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
	"github.com/cohort-ml/cohort/tensor"
)

func TestMain(m *testing.M) {
	tensor.CPU() // its threads live as long as the process, not in the bubble of a test
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// agents makes n agents, "w0" and so on, that are connected in one way and closed
// at the end of the test.
func agents(t testing.TB, transport string, n int, opts ...Option) []*Agent {
	t.Helper()
	return agentsOf(t, transport, n, func(int) []Option { return opts })
}

func agentsOf(t testing.TB, transport string, n int, opts func(rank int) []Option) []*Agent {
	t.Helper()
	meet := WithListen("127.0.0.1:0")
	if transport == agenttest.Pipe {
		meet = WithNetwork(NewNetwork())
	}
	mem := store.NewMemory()
	return agenttest.Start(t, transport, n, func(ctx context.Context, rank int) (*Agent, error) {
		common := []Option{WithToken(agenttest.Token), meet, WithStore(mem, rank, n)}
		return Init(ctx, fmt.Sprintf("w%d", rank), append(common, opts(rank)...)...)
	})
}

type addArgs struct{ X, Y *tensor.Tensor }

var (
	add  = NewMethod[addArgs, *tensor.Tensor]("test.add")
	noop = NewMethod[struct{}, struct{}]("test.noop")
	echo = NewMethod[*tensor.Tensor, *tensor.Tensor]("test.echo")
	fail = NewMethod[string, string]("test.fail")
	wait = NewMethod[struct{}, struct{}]("test.wait")
)

func serveBasics() Option {
	return WithOptions(
		Serve(add, func(_ context.Context, in addArgs) (*tensor.Tensor, error) { return in.X.Add(in.Y), nil }),
		Serve(noop, func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }),
		Serve(echo, func(_ context.Context, in *tensor.Tensor) (*tensor.Tensor, error) { return in, nil }),
		Serve(wait, func(ctx context.Context, _ struct{}) (struct{}, error) {
			<-ctx.Done()
			return struct{}{}, ctx.Err()
		}),
		Serve(fail, func(_ context.Context, how string) (string, error) {
			switch how {
			case "panic":
				panic("oh no")
			case "sentinel":
				return "", fmt.Errorf("wrapped: %w", errSentinel)
			case "typed":
				return "", fmt.Errorf("wrapped: %w", &typedError{Row: 7, Table: "users"})
			}
			return "", errors.New(how)
		}))
}

var errSentinel = errors.New("a sentinel")

type typedError struct {
	Row   int
	Table string
}

func (e *typedError) Error() string { return fmt.Sprintf("no row %d in %s", e.Row, e.Table) }

func TestCall(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics())
		ctx := t.Context()
		for _, p := range []*Peer{a[0].Peer("w1"), a[0].Self(), a[1].PeerRank(0)} {
			x, y := tensor.FromFloat32([]float32{1, 2, 3}), tensor.FromFloat32([]float32{10, 20, 30})
			sum, err := add.Call(ctx, p, addArgs{x, y})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(sum.Float32s()); got != "[11 22 33]" {
				t.Errorf("the sum is %s", got)
			}
			if _, err := noop.Call(ctx, p, struct{}{}); err != nil {
				t.Error(err)
			}
			for _, n := range []int{0, 1, 4000, 5000, 1 << 20} {
				in := tensor.Full(float64(n), n/2, 2)
				out, err := echo.Call(ctx, p, in)
				if err != nil {
					t.Fatal(n, err)
				}
				if fmt.Sprint(out.Shape()) != fmt.Sprint(in.Shape()) {
					t.Errorf("shape %v, want %v", out.Shape(), in.Shape())
				}
				got := out.Float32s()
				for i := range got {
					if got[i] != float32(n) {
						t.Fatalf("%d elements: element %d is %v", n, i, got[i])
					}
				}
			}
			turned := tensor.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3).Transpose(0, 1)
			if out, err := echo.Call(ctx, p, turned); err != nil || fmt.Sprint(out.Shape(), out.Float32s()) != "[3 2] [1 4 2 5 3 6]" {
				t.Errorf("a transposed tensor: %v, %v", out, err)
			}
			if out, err := echo.Call(ctx, p, nil); err != nil || out != nil {
				t.Errorf("nil: %v, %v", out, err)
			}
		}
		if got := a[0].Peer("w1").Transport(); got != kind {
			t.Errorf("the transport is %q, want %q", got, kind)
		}
	})
}

func TestAsync(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics())
		ctx := t.Context()
		x := tensor.FromFloat32([]float32{1, 2})
		var fs []*Future[*tensor.Tensor]
		for range 2000 {
			fs = append(fs, add.Async(ctx, a[0].Peer("w1"), addArgs{x, x}))
		}
		big := tensor.Full(3, 1<<16)
		for range 20 {
			fs = append(fs, add.Async(ctx, a[0].Peer("w1"), addArgs{big, big}))
		}
		for i, f := range fs {
			v, err := f.Wait(ctx)
			if err != nil {
				t.Fatal(i, err)
			}
			if got := v.Float32s(); i < 2000 && (got[0] != 2 || got[1] != 4) || i >= 2000 && (got[1<<16-1] != 6) {
				t.Fatalf("call %d: %v", i, got[:2])
			}
		}
		g := Then(add.Async(ctx, a[0].Peer("w1"), addArgs{x, x}), func(v *tensor.Tensor) (string, error) { return fmt.Sprint(v.Float32s()), nil })
		if s, err := g.Wait(ctx); err != nil || s != "[2 4]" {
			t.Errorf("then: %q, %v", s, err)
		}
	})
}

func TestErrors(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 2, serveBasics(), WithError("test.sentinel", errSentinel), WithErrorType[*typedError]("test.typed"))
		ctx := t.Context()
		p := a[0].Peer("w1")
		check := func(err error, kind Kind, words ...string) *Error {
			t.Helper()
			var e *Error
			if !errors.As(err, &e) || e.Kind != kind {
				t.Errorf("%v: kind %q, want %q", err, KindOf(err), kind)
				return &Error{}
			}
			for _, w := range words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			return e
		}
		_, err := fail.Call(ctx, p, "plain words")
		e := check(err, KindApplication, "plain words", "test.fail", "w1", "rank 1")
		if !strings.Contains(e.Stack, "w1: test.fail served by") {
			t.Errorf("the stack is %q", e.Stack)
		}
		_, err = fail.Call(ctx, p, "panic")
		if e := check(err, KindPanic, "oh no (at rpc/rpc_test.go:"); !strings.Contains(e.Stack, "rpc_test.go") {
			t.Errorf("the stack of a panic is %q", e.Stack)
		}
		_, err = fail.Call(ctx, p, "sentinel")
		if check(err, KindApplication, "wrapped"); !errors.Is(err, errSentinel) {
			t.Errorf("%v is not the sentinel", err)
		}
		_, err = fail.Call(ctx, p, "typed")
		var typed *typedError
		if check(err, KindApplication, "no row 7"); !errors.As(err, &typed) || typed.Row != 7 || typed.Table != "users" {
			t.Errorf("%v is no typed error of row 7: %+v", err, typed)
		}
		_, err = NewMethod[int, int]("test.nothing").Call(ctx, p, 1)
		check(err, KindUnknownMethod, "test.nothing", "w1", "test.add")
		_, err = NewMethod[int, []string]("test.fail").Call(ctx, p, 1)
		check(err, KindTypes, "text -> text", "int64 -> [text]")
		_, err = noop.Call(ctx, a[0].Peer("nobody"), struct{}{})
		check(err, KindUnknownPeer, "nobody", "w0, w1")
		_, err = noop.Call(ctx, a[0].PeerRank(2), struct{}{})
		check(err, KindUnknownPeer, "rank 2")

		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err = wait.Call(soon, p, struct{}{})
		if check(err, KindTimeout, "test.wait", "w1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not the deadline's error", err)
		}
		stopped, stop := context.WithCancel(ctx)
		f := wait.Async(stopped, p, struct{}{})
		stop()
		_, err = f.Wait(ctx)
		if check(err, KindCanceled, "test.wait", "w1"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not the cancellation's error", err)
		}
		if _, err := noop.Call(ctx, p, struct{}{}); err != nil {
			t.Errorf("the peer serves no more: %v", err)
		}
	})
}

func TestShutdown(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 4, serveBasics())
		var fs []*Future[struct{}]
		for _, from := range a {
			for _, p := range from.Peers() {
				fs = append(fs, noop.Async(t.Context(), p, struct{}{}))
			}
		}
		var wg sync.WaitGroup
		for _, x := range a {
			wg.Go(func() {
				if err := x.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, f := range fs {
			if _, err := f.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if _, err := noop.Call(t.Context(), a[0].Peer("w1"), struct{}{}); KindOf(err) != KindClosed {
			t.Errorf("a call of a closed agent: %v", err)
		}
	})
}
