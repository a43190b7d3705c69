// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/internal/work"
)

func keep[S any](s []S) ([]S, error) { return s, nil }

// keys is the dataset whose samples are their keys, made in random time.
func keys(n int) Dataset[Key] {
	return FromFunc(n, func(_ context.Context, k Key) (Key, error) {
		time.Sleep(time.Duration(k.Index*7919%13) * time.Millisecond)
		return k, nil
	})
}

func stream(t *testing.T, n, batch, rank, world int) *Stream {
	t.Helper()
	s, err := NewStream(StreamConfig{Len: n, Batch: batch, Rank: rank, World: world, Shuffle: true, Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every test below runs in a bubble: it ends only if no goroutine is left.

func TestLoaderResumesExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed = 12
		r := rand.New(rand.NewPCG(seed, 0))
		ctx := context.Background()
		for range 40 {
			n := 1 + r.IntN(50)
			ref := stream(t, n, 1, 0, 1)
			var state LoaderState
			for range 5 { // crashes
				world, batch := 1+r.IntN(min(n, 4)), 1+r.IntN(5)
				steps := r.IntN(8)
				saved := state
				for rank := range world {
					l, err := NewLoader(ctx, keys(n), stream(t, n, batch, rank, world), keep, LoaderConfig{Workers: r.IntN(5), Prefetch: r.IntN(4)}, saved)
					if err != nil {
						t.Fatal(err)
					}
					for step := range steps {
						got, err := l.Next(ctx)
						if err != nil {
							t.Fatal(err)
						}
						for j, k := range got {
							pos := saved.Position + int64(step*batch*world+j*world+rank)
							if want := ref.At(pos); k != want {
								t.Fatalf("seed %d: rank %d of %d, step %d, row %d: sample %v, want %v", seed, rank, world, step, j, k, want)
							}
						}
					}
					l.Close()
					state = l.State()
					if want := saved.Position + int64(steps*batch*world); state.Position != want {
						t.Fatalf("position %d, want %d", state.Position, want)
					}
				}
			}
		}
	})
}

func TestLoaderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		ds := FromFunc(1000, func(context.Context, Key) (int, error) { made.Add(1); return 0, nil })
		l, err := NewLoader(t.Context(), ds, stream(t, 1000, 1, 0, 1), keep, LoaderConfig{Workers: 4, Prefetch: 3}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for i := range 10 {
			synctest.Wait()
			if n := int(made.Load()) - i; n != 3 {
				t.Fatalf("%d batches ahead, want 3", n)
			}
			if _, err := l.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if s := l.Stats(); s.Batches != 10 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A caller who gives up waiting loses nothing.
func TestLoaderNextDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := FromFunc(100, func(_ context.Context, k Key) (Key, error) { time.Sleep(time.Second); return k, nil })
		s := stream(t, 100, 1, 0, 1)
		l, err := NewLoader(t.Context(), slow, s, keep, LoaderConfig{Workers: 1}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for i := range 4 {
			gaveUp := 0
			for {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				got, err := l.Next(ctx)
				cancel()
				if err == nil {
					if want := s.At(int64(i)); got[0] != want {
						t.Fatalf("batch %d is %v, want %v", i, got[0], want)
					}
					break
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				gaveUp++
			}
			if gaveUp == 0 && i == 0 {
				t.Error("the deadline had no effect")
			}
		}
		if w := l.Stats().Waited; w == 0 {
			t.Error("no time waited")
		}
	})
}

func TestLoaderErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("bad sample")
		ds := FromFunc(100, func(_ context.Context, k Key) (Key, error) {
			if k.Epoch == 0 && k.Index == 42 {
				return k, bad
			}
			return k, nil
		})
		s, err := NewStream(StreamConfig{Len: 100, Batch: 5, World: 1})
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewLoader(t.Context(), ds, s, keep, LoaderConfig{Workers: 3, Prefetch: 4}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, err = range l.All(t.Context()) {
			if err == nil {
				n++
			}
		}
		var sample *SampleError
		if !errors.As(err, &sample) || sample.Key.Index != 42 || !errors.Is(err, bad) || n != 8 {
			t.Errorf("%d batches, then %v", n, err)
		}
		if _, again := l.Next(t.Context()); again != err {
			t.Errorf("then %v", again)
		}
		if p := l.State().Position; p != 40 {
			t.Errorf("position %d, want 40", p)
		}
		l.Close()
		l.Close()

		l, err = NewLoader(t.Context(), keys(9), stream(t, 9, 2, 0, 1), keep, LoaderConfig{}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if _, err := l.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestLoaderEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("rank 1 is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		hang := FromFunc(9, func(ctx context.Context, _ Key) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		l, err := NewLoader(ctx, hang, stream(t, 9, 2, 0, 1), keep, LoaderConfig{Workers: 2}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Second); cancel(cause) }()
		if _, err := l.Next(context.Background()); err == nil {
			t.Error("no error")
		}
		// Without Close: the context alone must end the goroutines.
	})
}

func TestLoaderCarriesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := FromFunc(9, func(context.Context, Key) (int, error) { panic("shape") })
		l, err := NewLoader(t.Context(), ds, stream(t, 9, 2, 0, 1), keep, LoaderConfig{}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		defer func() {
			p, ok := recover().(*work.Panic)
			if !ok || p.Value != "shape" || len(p.Stack) == 0 {
				t.Errorf("recovered %v", p)
			}
		}()
		_, err = l.Next(t.Context())
		t.Errorf("Next returned %v", err)
	})
}

func TestLoaderRefusesAnotherOrder(t *testing.T) {
	ctx := t.Context()
	state := LoaderState{Position: 8, Order: stream(t, 9, 2, 0, 1).Order()}
	var resume *ResumeError
	if _, err := NewLoader(ctx, keys(10), stream(t, 10, 2, 0, 1), keep, LoaderConfig{}, state); !errors.As(err, &resume) {
		t.Errorf("another length: %v", err)
	}
	for _, bad := range []LoaderState{{Position: 8}, {Position: -1, Order: state.Order}} {
		if _, err := NewLoader(ctx, keys(9), stream(t, 9, 2, 0, 1), keep, LoaderConfig{}, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if _, err := NewLoader(ctx, keys(9), stream(t, 9, 2, 0, 1), keep, LoaderConfig{Workers: -1}, LoaderState{}); err == nil {
		t.Error("-1 workers were accepted")
	}
}

func TestFromSlice(t *testing.T) {
	ds := FromSlice([]string{"a", "b"})
	got, err := ds.Get(t.Context(), Key{3, 1})
	if err != nil || got != "b" || ds.Len() != 2 {
		t.Errorf("%q, %v", got, err)
	}
	for _, i := range []int{-1, 2} {
		if _, err := ds.Get(t.Context(), Key{0, i}); err == nil {
			t.Errorf("sample %d exists", i)
		}
	}
}

func ExampleLoader() {
	ctx := context.Background()
	s, _ := NewStream(StreamConfig{Len: 5, Batch: 2, Rank: 0, World: 1})
	sum := func(x []int) (int, error) { return x[0] + x[1], nil }
	l, err := NewLoader(ctx, FromSlice([]int{1, 2, 3, 4, 5}), s, sum, LoaderConfig{}, LoaderState{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	for range 3 {
		b, _ := l.Next(ctx)
		fmt.Println(b, l.State().Position)
	}
	// Output:
	// 3 2
	// 7 4
	// 6 6
}
