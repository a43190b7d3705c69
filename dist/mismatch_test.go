// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// numMismatches is how many mismatches TestMismatches makes: every kind on every
// transport in half a minute of `go test -run TestMismatches -mismatches 259 -v
// ./dist`.
var numMismatches = flag.Int("mismatches", 0, "how many mismatches TestMismatches makes; 0 for a few")

// player is a rank of a program with a mistake in it.
type player struct {
	ctx   context.Context
	g     *Group
	odd   int      // the rank whose program is another than the others'
	lines []string // where it has called, at first the last
}

// at notes the line that makes a call.
func (p *player) at() *Group {
	_, file, line, _ := runtime.Caller(1)
	p.lines = slices.Insert(p.lines, 0, fmt.Sprintf("%s:%d", path.Base(file), line))
	return p.g
}

// vec is a tensor of a type that is not the ordinary one, or is.
func vec(n int, d ...tensor.DType) *tensor.Tensor {
	return private(append(d, tensor.Float32)[0], n)
}

// vecs are tensors of some sizes.
func vecs(counts ...int) []*tensor.Tensor {
	var all []*tensor.Tensor
	for _, n := range counts {
		all = append(all, vec(n))
	}
	return all
}

// sizes has a size for every rank.
func sizes(g *Group, n int) []int { return slices.Repeat([]int{n}, g.Size()) }

// but is sizes with another size for one rank.
func but(g *Group, n, rank, other int) []int {
	all := sizes(g, n)
	all[rank%g.Size()] = other
	return all
}

// mismatches are mistakes: what most ranks call and what one calls.
var mismatches = []struct {
	name        string
	most, other func(p *player) error
	// texts must be in the error: what differs.
	texts []string
	// apart says that the calls are on two groups, whose members are told of a
	// pair of calls each.
	apart bool
}{
	{"operation: all_reduce, barrier",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) },
		func(p *player) error { return p.at().Barrier(p.ctx) }, []string{"all_reduce sum of 4 float32", "barrier"}, false},
	{"operation: broadcast, all_reduce",
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(4), 0) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) }, []string{"broadcast from rank 0", "all_reduce sum"}, false},
	{"operation: all_gather, reduce_scatter",
		func(p *player) error { return p.at().AllGather(p.ctx, vec(3*p.g.Size()), vec(3)) },
		func(p *player) error { return p.at().ReduceScatter(p.ctx, vec(3), vec(3*p.g.Size()), Sum) }, []string{"all_gather of 3", "reduce_scatter sum of 3"}, false},
	{"operation: reduce, all_reduce",
		func(p *player) error { return p.at().Reduce(p.ctx, vec(4), 1, Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) }, []string{"reduce sum to rank 1", "all_reduce sum"}, false},
	{"operation: all_to_all, all_gather",
		func(p *player) error {
			return p.at().AllToAllSingle(p.ctx, vec(p.g.Size()), vec(p.g.Size()), nil, nil)
		},
		func(p *player) error { return p.at().AllGather(p.ctx, vec(p.g.Size()), vec(1)) }, []string{"all_to_all of 1", "all_gather of 1"}, false},
	{"shape: all_reduce",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(5), Sum) }, []string{"of 4 float32", "of 5 float32"}, false},
	{"shape: large all_reduce",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(400_000), Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(400_001), Sum) }, []string{"of 400000 float32", "of 400001 float32"}, false},
	{"shape: large all_reduce and small",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(400_000), Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(1), Sum) }, []string{"of 400000 float32", "of 1 float32"}, false},
	{"shape: broadcast",
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(8), 0) },
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(80_000), 0) }, []string{"of 8 float32", "of 80000 float32"}, false},
	{"shape: all_gather",
		func(p *player) error { return p.at().AllGather(p.ctx, vec(3*p.g.Size()), vec(3)) },
		func(p *player) error { return p.at().AllGather(p.ctx, vec(4*p.g.Size()), vec(4)) }, []string{"of 3 float32", "of 4 float32"}, false},
	{"shape: one of the parts of an all_gather",
		func(p *player) error {
			return p.at().AllGatherList(p.ctx, vecs(but(p.g, 3, p.odd+1, 5)...), vec(but(p.g, 3, p.odd+1, 5)[p.g.Rank()]))
		},
		func(p *player) error {
			return p.at().AllGatherList(p.ctx, vecs(but(p.g, 3, p.odd+1, 6)...), vec(but(p.g, 3, p.odd+1, 6)[p.g.Rank()]))
		}, []string{"5", "6"}, false},
	{"shape: one of the parts of an all_gather that is even elsewhere",
		func(p *player) error { return p.at().AllGatherList(p.ctx, vecs(sizes(p.g, 3)...), vec(3)) },
		func(p *player) error {
			return p.at().AllGatherList(p.ctx, vecs(but(p.g, 3, p.odd+1, 4)...), vec(3))
		}, []string{"all_gather of 3 float32", "4"}, false},
	{"shape: reduce_scatter",
		func(p *player) error { return p.at().ReduceScatter(p.ctx, vec(3), vec(3*p.g.Size()), Sum) },
		func(p *player) error { return p.at().ReduceScatter(p.ctx, vec(2), vec(2*p.g.Size()), Sum) }, []string{"of 3 float32", "of 2 float32"}, false},
	{"dtype: all_reduce",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4, tensor.Int64), Sum) }, []string{"4 float32", "4 int64"}, false},
	{"dtype: all_reduce in half the bytes",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Max) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(8, tensor.BFloat16), Max) }, []string{"4 float32", "8 bfloat16"}, false},
	{"dtype: broadcast",
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(4), 0) },
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(4, tensor.Int32), 0) }, []string{"4 float32", "4 int32"}, false},
	{"reduction: all_reduce",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Max) }, []string{"all_reduce sum", "all_reduce max"}, false},
	{"reduction: large all_reduce",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(300_000), Avg) },
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(300_000), Sum) }, []string{"all_reduce avg", "all_reduce sum"}, false},
	{"reduction: reduce_scatter",
		func(p *player) error { return p.at().ReduceScatter(p.ctx, vec(2), vec(2*p.g.Size()), Min) },
		func(p *player) error { return p.at().ReduceScatter(p.ctx, vec(2), vec(2*p.g.Size()), Max) }, []string{"min", "max"}, false},
	{"root: broadcast",
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(4), (p.odd+1)%p.g.Size()) },
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(4), p.odd) }, []string{"broadcast from rank"}, false},
	{"root: large broadcast",
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(300_000), (p.odd+1)%p.g.Size()) },
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(300_000), p.odd) }, []string{"broadcast from rank"}, false},
	{"root: reduce",
		func(p *player) error { return p.at().Reduce(p.ctx, vec(4), (p.odd+1)%p.g.Size(), Sum) },
		func(p *player) error { return p.at().Reduce(p.ctx, vec(4), p.odd, Sum) }, []string{"reduce sum to rank"}, false},
	{"root: gather",
		func(p *player) error { return p.gather((p.odd + 1) % p.g.Size()) },
		func(p *player) error { return p.gather(p.odd) }, []string{"gather to rank"}, false},
	{"root: scatter",
		func(p *player) error { return p.scatter((p.odd + 1) % p.g.Size()) },
		func(p *player) error { return p.scatter(p.odd) }, []string{"scatter from rank"}, false},
	{"order: all_reduce and barrier",
		func(p *player) error {
			if err := p.at().AllReduce(p.ctx, vec(4), Sum); err != nil {
				return err
			}
			return p.at().Barrier(p.ctx)
		},
		func(p *player) error {
			if err := p.at().Barrier(p.ctx); err != nil {
				return err
			}
			return p.at().AllReduce(p.ctx, vec(4), Sum)
		}, []string{"all_reduce sum of 4", "barrier"}, false},
	{"order: two all_reduces under way",
		func(p *player) error {
			a, b := p.at().AllReduceAsync(p.ctx, vec(10), Sum), p.at().AllReduceAsync(p.ctx, vec(20), Sum)
			return errors.Join(a.Wait(p.ctx), b.Wait(p.ctx))
		},
		func(p *player) error {
			a, b := p.at().AllReduceAsync(p.ctx, vec(20), Sum), p.at().AllReduceAsync(p.ctx, vec(10), Sum)
			return errors.Join(a.Wait(p.ctx), b.Wait(p.ctx))
		}, []string{"of 10 float32", "of 20 float32"}, false},
	{"order: one call left out",
		func(p *player) error {
			if err := p.at().AllReduce(p.ctx, vec(7), Sum); err != nil {
				return err
			}
			return p.at().Broadcast(p.ctx, vec(9), 0)
		},
		func(p *player) error { return p.at().Broadcast(p.ctx, vec(9), 0) }, []string{"all_reduce sum of 7", "broadcast from rank 0 of 9"}, false},
	{"shape: what is sent is not what is expected",
		func(p *player) error { return p.exchange(2) },
		func(p *player) error { return p.exchange(1) }, []string{"has 1 element for rank", "which expects 2"}, false},
	{"shape: large, what is sent is not what is expected",
		func(p *player) error { return p.exchange(200_000) },
		func(p *player) error { return p.exchange(100_000) }, []string{"has 100000 elements for rank", "which expects 200000"}, false},
	{nothingSent,
		func(p *player) error { return p.exchange(2) },
		func(p *player) error { return p.exchange(0) }, []string{"has 0 elements for rank", "which expects 2"}, false},
	{"shape: of one rank, gathered",
		func(p *player) error { return p.gatherOf(3) },
		func(p *player) error { return p.gatherOf(4) }, []string{"has 4 elements for rank", "which expects 3"}, false},
	{"shape: of one rank, scattered",
		func(p *player) error { return p.scatterOf(3) },
		func(p *player) error { return p.scatterOf(4) }, []string{"has 3 elements for rank", "which expects 4"}, false},
	{"group: on that of all, and on another one",
		func(p *player) error {
			a, err := p.all("a")
			if err != nil {
				return err
			}
			return p.on(a).AllReduce(p.ctx, vec(4), Sum)
		},
		func(p *player) error {
			if _, err := p.all("a"); err != nil {
				return err
			}
			return p.at().AllReduce(p.ctx, vec(4), Sum)
		}, []string{"all_reduce sum of 4 float32 on group"}, true},
	{"group: two of them in another order",
		func(p *player) error { return p.both("a", "b") },
		func(p *player) error { return p.both("b", "a") }, []string{"all_reduce sum of 4 float32 on group"}, true},
	{"message: in place of a collective",
		func(p *player) error { return p.at().AllReduce(p.ctx, vec(4), Sum) },
		func(p *player) error { return p.at().Recv(p.ctx, vec(4), (p.odd+1)%p.g.Size()) },
		[]string{"recv of 4 float32", "all_reduce sum of 4 float32"}, false},
	{"message: shape",
		func(p *player) error { return p.message(10) },
		func(p *player) error { return p.message(11) }, []string{"send of", "recv of", "10 float32", "11 float32"}, false},
	{"message: large",
		func(p *player) error { return p.message(1 << 20) },
		func(p *player) error { return p.message(1<<20 + 1) }, []string{"send of", "recv of", "1048576", "1048577"}, false},
	{"message: dtype",
		func(p *player) error { return p.message(8) },
		func(p *player) error { return p.message(8, tensor.Float64) }, []string{"send of", "recv of", "float32", "float64"}, false},
}

// on is at for another group.
func (p *player) on(g *Group) *Group {
	_, file, line, _ := runtime.Caller(1)
	p.lines = slices.Insert(p.lines, 0, fmt.Sprintf("%s:%d", path.Base(file), line))
	return g
}

// all makes another group of all ranks.
func (p *player) all(name string) (*Group, error) {
	ranks := make([]int, p.g.Size())
	for r := range ranks {
		ranks[r] = r
	}
	return p.g.NewGroup(p.ctx, ranks, WithName(name))
}

// both reduces on two groups, one after the other.
func (p *player) both(names ...string) error {
	groups := map[string]*Group{}
	for _, name := range []string{"a", "b"} {
		g, err := p.all(name)
		if err != nil {
			return err
		}
		groups[name] = g
	}
	for _, name := range names {
		if err := p.on(groups[name]).AllReduce(p.ctx, vec(4), Sum); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) gather(root int) error {
	var dsts []*tensor.Tensor
	if p.g.Rank() == root {
		dsts = vecs(sizes(p.g, 3)...)
	}
	return p.at().Gather(p.ctx, dsts, vec(3), root)
}

func (p *player) scatter(root int) error {
	var srcs []*tensor.Tensor
	if p.g.Rank() == root {
		srcs = vecs(sizes(p.g, 3)...)
	}
	return p.at().Scatter(p.ctx, vec(3), srcs, root)
}

// exchange sends n elements to every rank and, if this is the odd one, gets 2
// or as many as the others send.
func (p *player) exchange(n int) error {
	most := 2
	if n > 2 {
		most = 200_000
	}
	recvs, sends := sizes(p.g, most), sizes(p.g, n)
	sends[p.odd] = most // which the odd rank itself expects, and keeps
	return p.at().AllToAll(p.ctx, vecs(recvs...), vecs(sends...))
}

// gatherOf gathers 3 elements of each rank, or n of this one, on the next rank.
func (p *player) gatherOf(n int) error {
	root := (p.odd + 1) % p.g.Size()
	var dsts []*tensor.Tensor
	if p.g.Rank() == root {
		dsts = vecs(sizes(p.g, 3)...)
	}
	return p.at().Gather(p.ctx, dsts, vec(n), root)
}

func (p *player) scatterOf(n int) error {
	root := (p.odd + 1) % p.g.Size()
	var srcs []*tensor.Tensor
	if p.g.Rank() == root {
		srcs = vecs(sizes(p.g, 3)...)
	}
	return p.at().Scatter(p.ctx, vec(n), srcs, root)
}

// message has the odd rank send to the next one, or receive from it if it has
// an odd number.
func (p *player) message(n int, d ...tensor.DType) error {
	next := (p.odd + 1) % p.g.Size()
	switch me := p.g.Rank(); {
	case me == p.odd && me%2 == 0:
		return p.at().Send(p.ctx, vec(n, d...), next)
	case me == p.odd:
		return p.at().Recv(p.ctx, vec(n, d...), next)
	case me == next && p.odd%2 == 0:
		return p.at().Recv(p.ctx, vec(n, d...), p.odd)
	case me == next:
		return p.at().Send(p.ctx, vec(n, d...), p.odd)
	}
	return nil
}

// TestMismatches makes mistakes of every kind on every transport, at a random
// place of a program, by a random rank: every rank gets one error, the same
// two calls on all of them, each with its rank and line.
func TestMismatches(t *testing.T) {
	t.Parallel()
	seed, num := *caseSeed, *numMismatches
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if num == 0 {
		num = len(mismatches)
	}
	took := make([][]time.Duration, len(transports))
	for i := range num {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		kind := i % len(mismatches)
		way := (i/len(mismatches) + kind + int(seed%7)) % len(transports)
		n := 2 + rng.IntN(4)
		tc, tr := &mismatches[kind], &transports[way]
		name := fmt.Sprintf("%d %s %s %d", i, tc.name, tr.name, n)
		last, err := makeMismatch(t, way, kind, n, rng)
		if err != nil {
			t.Errorf("%s: %v (-seed %d -mismatches %d)", name, err, seed, num)
		}
		took[way] = append(took[way], last)
	}
	for i, tr := range transports {
		if slices.Sort(took[i]); len(took[i]) > 0 {
			t.Logf("%-10s %3d mismatches, until the last rank knew: median %v, most %v", tr.name, len(took[i]), took[i][len(took[i])/2], took[i][len(took[i])-1])
		}
	}
}

// nothingSent is a kind of which the odd rank may not know: it waits for nothing,
// and may have gone on to its next call when it is asked.
const nothingSent = "shape: nothing is sent and something expected"

// makeMismatch makes one and returns how long it took until the last rank had
// its error.
func makeMismatch(t *testing.T, way, kind, n int, rng *rand.Rand) (time.Duration, error) {
	tc := &mismatches[kind]
	odd, before := rng.IntN(n), rng.IntN(20)
	errs, players := make([]error, n), make([]player, n)
	ended := make([]time.Time, n)
	var all, ready sync.WaitGroup
	all.Add(n)
	ready.Add(n)
	var start time.Time
	err := transports[way].run(t.Context(), n, func(ctx context.Context, g *Group) error {
		defer all.Wait()
		defer all.Done()
		me := g.Rank()
		p := &players[me]
		*p = player{ctx: ctx, g: g, odd: odd}
		for range before {
			if err := g.AllReduce(ctx, vec(16), Sum); err != nil {
				return err
			}
		}
		ready.Done()
		ready.Wait()
		if me == odd {
			start = time.Now()
			errs[me] = tc.other(p)
		} else {
			errs[me] = tc.most(p)
		}
		for errs[me] == nil {
			// One that only sends has done its part: a later call tells it.
			errs[me] = g.Barrier(ctx)
		}
		ended[me] = time.Now()
		return nil
	}, WithTimeout(5*time.Second))
	if err != nil {
		return 0, err
	}
	last := slices.MaxFunc(ended, time.Time.Compare).Sub(start)
	var pair string
	for r, err := range errs {
		var m *MismatchError
		if !errors.As(err, &m) {
			return last, fmt.Errorf("rank %d: not a mismatch: %v", r, err)
		}
		if m.There.Rank == r {
			return last, fmt.Errorf("rank %d is not the first in its own error: %v", r, err)
		}
		if m.Here.Rank > m.There.Rank {
			turned := *m
			turned.Here, turned.There, turned.Seq = m.There, m.Here, m.There.Call.Seq
			m = &turned
		}
		if text := m.Error(); pair == "" {
			pair = text
		} else if text != pair && !tc.apart {
			return last, fmt.Errorf("rank %d has another mismatch than rank 0:\n%s\n%s", r, text, pair)
		}
		if m.Here.Rank != odd && m.There.Rank != odd {
			return last, fmt.Errorf("rank %d: rank %d is not named: %v", r, odd, err)
		}
		if tc.name == nothingSent && strings.Contains(err.Error(), " rank "+strconv.Itoa(odd)+" barrier") {
			continue
		}
		for _, rc := range []RankCall{m.Here, m.There} {
			if !slices.ContainsFunc(players[rc.Rank].lines, func(line string) bool { return strings.Contains(rc.Site+" ", line+" ") }) {
				return last, fmt.Errorf("rank %d: rank %d's call is not one of %v: %v", r, rc.Rank, players[rc.Rank].lines, err)
			}
		}
		for _, want := range tc.texts {
			if !strings.Contains(err.Error(), want) {
				return last, fmt.Errorf("rank %d: no %q in: %v", r, want, err)
			}
		}
		if last > loaded.Allow(3*time.Second) {
			return last, fmt.Errorf("the last rank knew after %v", last)
		}
	}
	return last, nil
}

// TestNothingComes has a rank of an all-to-all that takes its parts for empty
// do something else: those who wait for them are told meanwhile.
func TestNothingComes(t *testing.T) {
	told := make(chan struct{}, 2)
	failing(t, 3, func(ctx context.Context, g *Group) error {
		p := &player{ctx: ctx, g: g, odd: 1}
		if g.Rank() == 1 {
			if err := p.exchange(0); err != nil {
				return err
			}
			<-told
			<-told
			return g.Barrier(ctx)
		}
		start := time.Now()
		err := p.exchange(2)
		told <- struct{}{}
		if took := time.Since(start); took > loaded.Allow(time.Second) {
			return fmt.Errorf("told after %v: %w", took, err)
		}
		return err
	}, func(errs []error) error {
		for r, err := range errs {
			var m *MismatchError
			if !errors.As(err, &m) || m.Parcel == nil || m.Parcel.From != 1 || m.Parcel.Have != 0 || m.Parcel.Want != 2 {
				return fmt.Errorf("rank %d: not told that rank 1 has nothing: %v", r, err)
			}
		}
		return nil
	})
}
