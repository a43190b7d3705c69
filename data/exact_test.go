// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

var (
	exactRuns = flag.Int("exact.runs", 60, "random runs of TestExactOrder")
	exactSeed = flag.Uint64("exact.seed", 1, "of the first of them")
)

// keySum stands for a multiset of keys.
func keySum(keys []Key) (sum uint64) {
	for _, k := range keys {
		sum += mixKey(k)
	}
	return sum
}

// A run of random length is crashed at random steps, in the middle of random
// batches, and resumed from its last checkpoint on 1 to 8 ranks with 0 to 8
// workers each, which need random time. The samples of its global batches are,
// step by step, those of the uninterrupted run, and so is their multiset; the
// logs of the ranks prove it. With the global batch fixed, as an elastic run
// keeps it although it may not divide by the ranks, each step's batch is that
// of the same step; where batches change, that of the same positions.
//
//	go test ./data -run TestExactOrder -exact.runs 3000 -exact.seed 7
func TestExactOrder(t *testing.T) {
	for i := range uint64(*exactRuns) {
		seed := *exactSeed + i
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { exactRun(t, seed) })
		})
	}
}

func exactRun(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	n := 8 + r.IntN(120)
	steps := 2 + r.IntN(18)
	elastic := r.IntN(2) == 0
	perStep := 8 << r.IntN(3) // samples of a step, if elastic
	bad := r.IntN(3) == 0     // some samples cannot be made
	ds := FromFunc(n, func(ctx context.Context, k Key) (Key, error) {
		time.Sleep(time.Duration(mixKey(k)%7) * time.Millisecond)
		if bad && mixKey(Key{3, k.Index})%11 == 0 {
			return k, errors.New("the picture is torn")
		}
		return k, nil
	})
	shuffleSeed := r.Int64()
	type ordered interface {
		Sampler
		At(position int64) Key
	}
	mixed := seed%3 == 0 // several sources
	streamOf := func(batch, total, rank, world int) ordered {
		var s ordered
		var err error
		if mixed {
			if total == 0 {
				total = batch * world
			}
			s, err = NewMixture(MixtureConfig{
				Sources: []MixtureSource{{n / 4, 0.5}, {n - n/4 - 1, 3}, {1, 1e-9}}, Total: total, Rank: rank, World: world, Seed: shuffleSeed,
			})
		} else {
			s, err = NewStream(StreamConfig{Len: n, Batch: batch, Total: total, Rank: rank, World: world, Shuffle: true, Seed: shuffleSeed})
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	reference := streamOf(1, 0, 0, 1)
	between := func(from, to int64) []Key {
		var keys []Key
		for p := from; p < to; p++ {
			keys = append(keys, reference.At(p))
		}
		return keys
	}
	var (
		dir      = filepath.Join(t.TempDir(), "order")
		saved    LoaderState
		done     int                // steps of the checkpoint
		ofStep   = map[int]uint64{} // multiset of each step's keys, the last time it was done
		delivers = map[Key]Key{}    // what stands for a key: the same whoever makes it
		number   int64
	)
	for done < steps {
		world, passes := 1+r.IntN(8), 1+r.IntN(3)
		batch, total := 1+r.IntN(5), 0
		if elastic {
			passes = 1 << r.IntN(2)
			world = min(world, perStep/passes)
			total = perStep / passes
		}
		number++
		c := LoaderConfig{Workers: r.IntN(9), Prefetch: r.IntN(4), OnError: SkipSample}
		loaders, logs := make([]*Loader[Key, []Key], world), make([]*OrderLog, world)
		for rank := range world {
			var err error
			if loaders[rank], err = NewLoader(t.Context(), ds, streamOf(batch, total, rank, world), keep, c, saved); err != nil {
				t.Fatal(err)
			}
			if logs[rank], err = OpenOrderLog(dir, rank); err != nil {
				t.Fatal(err)
			}
			if err := logs[rank].Begin(OrderAttempt{Attempt: number, World: world, Batch: batch, Total: total, Step: done, From: loaders[rank].State()}); err != nil {
				t.Fatal(err)
			}
		}
		// Until the last step, or a crash, which loses what came after a checkpoint.
		end, checkpoint := steps, steps
		if r.IntN(4) > 0 {
			end = done + r.IntN(steps-done+1)
			checkpoint = done + r.IntN(end-done+1)
		}
		next := saved
		for step := done + 1; step <= end; step++ {
			before := loaders[0].State().Position
			var got []Key
			for rank, l := range loaders {
				for range passes {
					rows, err := l.Next(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					logs[rank].Add(l.Keys(), l.Skipped())
					got = append(got, l.Keys()...)
					skips := l.Skipped()
					for i, k := range l.Keys() {
						want := k
						if len(skips) > 0 && skips[0].Key == k {
							want, skips = skips[0].By, skips[1:]
						}
						if rows[i] != want {
							t.Fatalf("seed %d: step %d, rank %d of %d, %d workers: row %d is %v, want %v", seed, step, rank, world, c.Workers, i, rows[i], want)
						}
						if before, ok := delivers[k]; ok && before != want {
							t.Fatalf("seed %d: %v stands for %v, before that %v did", seed, want, k, before)
						}
						delivers[k] = want
					}
				}
			}
			after := loaders[0].State().Position
			if elastic {
				if before != int64((step-1)*perStep) || after != int64(step*perStep) {
					t.Fatalf("seed %d: step %d is from position %d to %d", seed, step, before, after)
				}
			}
			if keySum(got) != keySum(between(before, after)) || len(got) != int(after-before) {
				t.Fatalf("seed %d: step %d on %d ranks has %v, want %v", seed, step, world, got, between(before, after))
			}
			ofStep[step] = keySum(got)
			for rank, l := range loaders {
				// A crash takes some ranks before they have noted their last step.
				if step == end && end < steps && r.IntN(2) == 0 {
					continue
				}
				if l.State() != loaders[0].State() {
					t.Fatalf("seed %d: step %d: rank %d is at %v, rank 0 at %v", seed, step, rank, l.State(), loaders[0].State())
				}
				if err := logs[rank].Step(step, l.State().Position); err != nil {
					t.Fatal(err)
				}
			}
			if step == checkpoint && (step < end || end == steps) {
				next = loaders[0].State()
			}
		}
		if checkpoint == end && end < steps {
			checkpoint = done // a step that not all have noted has no checkpoint
		}
		for rank, l := range loaders {
			if end < steps && r.IntN(2) == 0 { // the crash comes while a batch is waited for
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(5))*time.Millisecond)
				l.Next(ctx)
				cancel()
			}
			l.Close()
			if end == steps && checkpoint == steps {
				if err := logs[rank].End(); err != nil {
					t.Fatal(err)
				}
			}
			if err := logs[rank].Close(); err != nil {
				t.Fatal(err)
			}
		}
		if checkpoint > done {
			saved, done = next, checkpoint
		}
	}
	var all uint64
	for step := 1; step <= steps; step++ {
		all += ofStep[step]
	}
	if want := keySum(between(0, saved.Position)); all != want {
		t.Errorf("seed %d: the multiset of all steps differs from the uninterrupted run's", seed)
	}
	report, err := CheckOrder(dir, CheckOptions{Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	if report.Err() != nil || report.Steps != steps || report.Samples != saved.Position || !report.Ended {
		t.Errorf("seed %d: the logs do not prove %d steps to position %d:\n%s", seed, steps, saved.Position, report)
	}
}
