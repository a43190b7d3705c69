// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Workers share the samples of a batch: it comes as soon as they can make it.
func TestLoaderWorkersShareABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := FromFunc(1000, func(context.Context, Key) (int, error) { time.Sleep(10 * time.Millisecond); return 0, nil })
		for _, c := range []struct {
			workers int
			first   time.Duration
		}{{0, 160}, {1, 160}, {4, 40}, {16, 10}, {32, 10}} {
			l, err := NewLoader(t.Context(), ds, stream(t, 1000, 16, 0, 1), keep, LoaderConfig{Workers: c.workers}, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for range 20 {
				if _, err := l.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := l.Stats().First, c.first*time.Millisecond; got != want {
				t.Errorf("%d workers: the first batch took %v, want %v", c.workers, got, want)
			}
			// 320 samples, of which all workers make some all the time.
			if got, want := time.Since(began), 320*10*time.Millisecond/time.Duration(max(1, min(c.workers, 32))); got < want || got > want+20*time.Millisecond {
				t.Errorf("%d workers: 20 batches took %v, want %v", c.workers, got, want)
			}
			l.Close()
		}
	})
}

// Nobody is woken who is not needed: with steps that are longer than a batch
// takes, one worker does it all.
func TestLoaderSleepsWhereOneWorkerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := FromFunc(1000, func(context.Context, Key) (int, error) { time.Sleep(time.Millisecond); return 0, nil })
		l, err := NewLoader(t.Context(), ds, stream(t, 1000, 8, 0, 1), keep, LoaderConfig{Workers: 8, Prefetch: 4}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		time.Sleep(time.Second)
		var before [8]int64
		for i := range l.meters {
			before[i] = l.meters[i].made.Load()
		}
		for range 50 {
			if _, err := l.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			busy := 0
			l.mu.Lock()
			busy = l.c.Workers - l.asleep
			l.mu.Unlock()
			if busy != 1 {
				t.Fatalf("%d workers are awake for one batch", busy)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if w := l.Stats().Waited; w != 0 {
			t.Errorf("waited %v", w)
		}
	})
}

func TestLoaderSkips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		torn := errors.New("torn")
		ds := FromFunc(100, func(_ context.Context, k Key) (Key, error) {
			if k.Index%4 == 0 {
				return k, torn
			}
			return k, nil
		})
		var want [][]Key
		for _, workers := range []int{0, 1, 5} {
			var told []Skip
			c := LoaderConfig{Workers: workers, OnError: SkipSample, OnSkip: func(s Skip) { told = append(told, s) }}
			l, err := NewLoader(t.Context(), ds, stream(t, 100, 7, 0, 1), keep, c, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			var got [][]Key
			wrong := 0
			for range 20 {
				b, err := l.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, slices.Clone(b))
				skips := l.Skipped()
				for i, k := range l.Keys() {
					if k.Index%4 != 0 {
						if b[i] != k {
							t.Errorf("row %d is %v, want %v", i, b[i], k)
						}
						continue
					}
					if len(skips) == 0 || skips[0].Key != k || skips[0].By != b[i] || skips[0].Err != torn || b[i].Index%4 == 0 || b[i].Epoch != k.Epoch {
						t.Fatalf("row %d is %v instead of %v, skipped %v", i, b[i], k, skips)
					}
					skips = skips[1:]
					wrong++
				}
			}
			if n := l.Stats().Skipped; int(n) != len(told) || int(n) != wrong {
				t.Errorf("%d skipped, %d told, want %d", n, len(told), wrong)
			}
			if want == nil {
				want = got
			}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%d workers: other batches than without", workers)
			}
			l.Close()
		}

		// A dataset of which nothing can be made ends, whatever the policy.
		bad := FromFunc(100, func(_ context.Context, k Key) (Key, error) { return k, torn })
		l, err := NewLoader(t.Context(), bad, stream(t, 100, 7, 0, 1), keep, LoaderConfig{Workers: 2, OnError: SkipSample}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var sample *SampleError
		if _, err := l.Next(t.Context()); !errors.As(err, &sample) || sample.Tried != numSubstitutes || sample.Key != stream(t, 100, 7, 0, 1).At(0) {
			t.Errorf("a dataset without good samples: %v", err)
		}
	})
}

// The error of a batch is that of its first bad row, whoever fails first.
func TestLoaderErrorIsTheFirstRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := FromFunc(16, func(_ context.Context, k Key) (int, error) {
			time.Sleep(time.Duration(16-k.Index) * time.Second)
			if k.Index%5 == 3 {
				return 0, fmt.Errorf("bad %d", k.Index)
			}
			return 0, nil
		})
		for _, workers := range []int{0, 1, 4, 16} {
			s, err := NewStream(StreamConfig{Len: 16, Batch: 16, World: 1})
			if err != nil {
				t.Fatal(err)
			}
			l, err := NewLoader(t.Context(), ds, s, keep, LoaderConfig{Workers: workers}, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			var sample *SampleError
			if _, err := l.Next(t.Context()); !errors.As(err, &sample) || sample.Key.Index != 3 {
				t.Errorf("%d workers: %v", workers, err)
			}
			l.Close()
		}
	})
}

// counted is a sample and a batch that counts what is in use.
type counted struct{ live *atomic.Int64 }

func (c counted) Release() { c.live.Add(-1) }

func TestLoaderReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var samples, batches atomic.Int64
		ds := FromFunc(100, func(context.Context, Key) (counted, error) {
			samples.Add(1)
			time.Sleep(time.Millisecond)
			return counted{&samples}, nil
		})
		collate := func([]counted) (counted, error) { batches.Add(1); return counted{&batches}, nil }
		for _, workers := range []int{0, 3} {
			l, err := NewLoader(t.Context(), ds, stream(t, 100, 6, 0, 1), collate, LoaderConfig{Workers: workers, Prefetch: 3}, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, err := l.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := batches.Load(); n < 1 || n > 4 {
					t.Errorf("%d workers: %d batches in use", workers, n)
				}
				time.Sleep(2500 * time.Microsecond)
			}
			l.Close()
			if s, b := samples.Load(), batches.Load(); s != 0 || b != 0 {
				t.Errorf("%d workers: %d samples and %d batches are not released", workers, s, b)
			}
		}
	})
}

// A loader without workers gives up when its caller does, and makes the same
// batch when it is called again.
func TestLoaderWithoutWorkersGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := FromFunc(100, func(ctx context.Context, k Key) (Key, error) {
			select {
			case <-ctx.Done():
				return k, ctx.Err()
			case <-time.After(time.Second):
				return k, nil
			}
		})
		s := stream(t, 100, 2, 0, 1)
		ctx, end := context.WithCancel(t.Context())
		l, err := NewLoader(ctx, ds, s, keep, LoaderConfig{OnError: SkipSample}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, patience := range []time.Duration{1500 * time.Millisecond, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			got, err := l.Next(ctx)
			cancel()
			if patience < time.Minute {
				if !errors.Is(err, context.DeadlineExceeded) || l.State().Position != 0 {
					t.Errorf("%v, position %d", err, l.State().Position)
				}
			} else if err != nil || !slices.Equal(got, []Key{s.At(0), s.At(1)}) || l.State().Position != 2 {
				t.Errorf("%v, %v, position %d", got, err, l.State().Position)
			}
		}
		time.AfterFunc(time.Second/2, end)
		if _, err := l.Next(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("after the loader's context: %v", err)
		}
	})
}

func TestLoaderStatsSayWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := func(c LoaderConfig, read, decode, collate, step time.Duration) LoaderStats {
			ds := FromFunc(1000, func(ctx context.Context, _ Key) (int, error) {
				r := Reading(ctx)
				time.Sleep(read)
				r.Done()
				time.Sleep(decode)
				return 0, nil
			})
			put := func([]int) (int, error) { time.Sleep(collate); return 0, nil }
			l, err := NewLoader(t.Context(), ds, stream(t, 1000, 10, 0, 1), put, c, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for range 100 {
				if _, err := l.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(step)
			}
			return l.Stats()
		}
		const ms = time.Millisecond
		for _, c := range []struct {
			workers                     int
			read, decode, collate, step time.Duration
			want                        string
		}{
			{2, ms, ms, ms, 100 * ms, "the step is the bottleneck, not the loader: the step waited for data 0.0 % of the time; its 2 workers were busy 10.7 % of the time (reading 47.6 %, making samples 47.6 %, collating 4.8 % of it)"},
			{2, 8 * ms, ms, ms, 10 * ms, "the loader is the bottleneck, most of all reading: the step waited for data 78."},
			{4, ms, 8 * ms, ms, 10 * ms, "the loader is the bottleneck, most of all making samples: the step waited for data 5"},
			{1, 0, ms, 90 * ms, 10 * ms, "the loader is the bottleneck, most of all collating: the step waited for data 9"},
			{0, ms, ms, ms, 20 * ms, "the loader is the bottleneck, most of all making samples: the step waited for data 51.2 % of the time; made between the steps, without workers (reading 47.6 %, making samples 47.6 %, collating 4.8 % of it); workers would help"},
		} {
			s := run(LoaderConfig{Workers: c.workers}, c.read, c.decode, c.collate, c.step)
			if !strings.HasPrefix(s.String(), c.want) {
				t.Errorf("%+v\n got %s\nwant %s", s, s, c.want)
			}
			if s.Batches != 100 || s.Samples != 1000 || s.First < 10*(c.read+c.decode)/time.Duration(max(c.workers, 1)) {
				t.Errorf("%+v", s)
			}
		}
	})
}

// What a loader does for a batch is a new slice of samples, and nothing else.
func TestLoaderAllocates(t *testing.T) {
	ds := FromSlice(make([]int, 1000))
	var mu sync.Mutex
	for _, workers := range []int{0, 2} {
		batches := 0
		collate := func([]int) (int, error) { mu.Lock(); defer mu.Unlock(); batches++; return 0, nil }
		l, err := NewLoader(t.Context(), ds, stream(t, 1000, 50, 0, 1), collate, LoaderConfig{Workers: workers, Prefetch: 4}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		for range 20 { // all epochs but the first have their order made anew
			if _, err := l.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		n := testing.AllocsPerRun(10, func() {
			if _, err := l.Next(ctx); err != nil {
				t.Fatal(err)
			}
		})
		if n > 3 {
			t.Errorf("%d workers: %v allocations a batch", workers, n)
		}
		l.Close()
	}
}

// A sample that never comes is named, however long the others wait for it.
func TestLoaderStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stuck = 5
		ds := FromFunc(64, func(ctx context.Context, k Key) (int, error) {
			if k.Index == stuck {
				<-ctx.Done()
			}
			return 0, ctx.Err()
		})
		for _, timeout := range []time.Duration{0, time.Minute, -1} {
			s, err := NewStream(StreamConfig{Len: 64, Batch: 4, World: 1})
			if err != nil {
				t.Fatal(err)
			}
			l, err := NewLoader(t.Context(), ds, s, keep, LoaderConfig{Workers: 3, Timeout: timeout}, LoaderState{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			began := time.Now()
			_, err = l.Next(ctx)
			cancel()
			took := time.Since(began)
			var stall *StallError
			switch want := max(timeout, 0); {
			case timeout < 0:
				if !errors.Is(err, context.DeadlineExceeded) || took != time.Hour {
					t.Errorf("after %v: %v", took, err)
				}
			case !errors.As(err, &stall) || stall.Position != 4 || !slices.Equal(stall.Keys, []Key{{0, stuck}}):
				t.Errorf("after %v: %v", took, err)
			case want == 0 && took != defaultTimeout || want > 0 && took != want:
				t.Errorf("%v: after %v", timeout, took)
			case !strings.HasPrefix(err.Error(), fmt.Sprintf("data: the batch at position 4 was not made within %v: sample 5 of epoch 0 is in the making", took)):
				t.Error(err)
			}
			l.Close()
		}
	})
}

// Close does not wait for ever for a Get that does not hear its context.
func TestLoaderCloseLeavesWhoDoesNotHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		ds := FromFunc(64, func(context.Context, Key) (int, error) { <-never; return 0, nil })
		l, err := NewLoader(t.Context(), ds, stream(t, 64, 4, 0, 1), keep, LoaderConfig{Workers: 3}, LoaderState{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began := time.Now()
		l.Close()
		if took := time.Since(began); took != closeTimeout {
			t.Errorf("Close took %v", took)
		}
		close(never)
	})
}
