// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// transports are the ways in which the tests of collectives form a group.
var transports = []struct {
	name string
	run  func(ctx context.Context, n int, main func(context.Context, *Group) error) error
}{
	{"goroutines", Spawn},
	{"shm", initRanks("shm")},
	{"tcp", initRanks("tcp")},
	{"unix", initRanks("unix")},
	{"mixed", func(ctx context.Context, n int, main func(context.Context, *Group) error) error {
		return mixedRanks(ctx, n, main)
	}},
	{"staged", func(ctx context.Context, n int, main func(context.Context, *Group) error) error {
		return spawn(ctx, n, native.GoRanksOptions{Private: true}, DefaultTimeout, main)
	}},
}

// initRanks makes ranks of goroutines that know each other through nothing
// but [Init], as processes would.
func initRanks(kind string) func(ctx context.Context, n int, main func(context.Context, *Group) error) error {
	return func(ctx context.Context, n int, main func(context.Context, *Group) error) error {
		os.Setenv("COHORT_TRANSPORT", kind) // read by Init; tests of this package do not run in parallel
		defer os.Unsetenv("COHORT_TRANSPORT")
		addr := freeAddr()
		errs := make([]error, n)
		var wg sync.WaitGroup
		for r := range n {
			wg.Go(func() {
				g, err := Init(ctx, WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, r, n)))
				if err != nil {
					errs[r] = err
					return
				}
				if n > 1 && g.Transport() != kind {
					errs[r] = fmt.Errorf("the transport is %s, want %s", g.Transport(), kind)
				}
				if err := main(ctx, g); err != nil {
					if g.backend != nil {
						g.backend.Fail(err)
					}
					errs[r] = err
				}
				if err := g.Close(); err != nil && errs[r] == nil {
					errs[r] = fmt.Errorf("close: %w", err)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

// freeAddr returns an address on which nobody listens at the moment, below the
// range from which the system takes ports for connections that go out.
func freeAddr() string {
	for {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer ln.Close()
		return ln.Addr().String()
	}
}

// onEveryTransport runs a test for every transport and the given world sizes.
func onEveryTransport(t *testing.T, sizes []int, main func(ctx context.Context, g *Group) error) {
	t.Helper()
	t.Setenv("COHORT_TOKEN", transport.NewToken().Text())
	for _, tr := range transports {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", tr.name, n), func(t *testing.T) {
				if err := tr.run(t.Context(), n, main); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

var worldSizes = []int{1, 2, 3, 4, 5, 8}

// numElems are chosen around the borders between algorithms: beside the call,
// one round of slots, several, more than there are slots.
var numElems = []int{0, 1, 3, 64, 1000, 4097, 70_001, 300_003}

var dtypes = []collective.DType{collective.Float32, collective.Int64}

// private returns data outside slabs; alignment is that of an element only.
func private(d collective.DType, n int) collective.Data {
	words := make([]uint64, n*d.Size()/8+2)
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
	return collective.Data{Buffer: mem.Buffer{Data: b[d.Size() : (n+1)*d.Size()]}, DType: d, NumElems: n}
}

// value is what rank r has in element i: sums of a few are exact in float32.
func value(r, i int) int64 { return int64((i*7+r*31)%201 - 100) }

func set(d collective.Data, i int, v int64) {
	switch d.DType {
	case collective.Float32:
		*(*float32)(unsafe.Pointer(&d.Bytes()[i*4])) = float32(v)
	case collective.Int64:
		*(*int64)(unsafe.Pointer(&d.Bytes()[i*8])) = v
	}
}

func get(d collective.Data, i int) int64 {
	if d.DType == collective.Float32 {
		return int64(*(*float32)(unsafe.Pointer(&d.Bytes()[i*4])))
	}
	return *(*int64)(unsafe.Pointer(&d.Bytes()[i*8]))
}

func filled(d collective.DType, n, rank int) collective.Data {
	x := private(d, n)
	for i := range n {
		set(x, i, value(rank, i))
	}
	return x
}

// check compares every element with want.
func check(what string, d collective.Data, want func(i int) int64) error {
	step := 1 + d.NumElems/10_000 // of large data a part, but its ends
	for i := 0; i < d.NumElems; i = max(i+1, min(i+step, d.NumElems-1)) {
		if got := get(d, i); got != want(i) {
			return fmt.Errorf("%s of %d %v: element %d is %d, want %d", what, d.NumElems, d.DType, i, got, want(i))
		}
	}
	return nil
}

// collectivesAgainstOracle runs every collective on every kind of data.
func collectivesAgainstOracle(ctx context.Context, g *Group) error {
	for _, dt := range dtypes {
		for _, n := range numElems {
			if err := g.run(g.barrier(ctx)); err != nil {
				return err
			}
			for _, op := range []ReduceOp{Sum, Max, Min} {
				if op != Sum && n > 5000 {
					continue
				}
				x := filled(dt, n, g.Rank())
				if err := g.run(g.allReduce(ctx, x, op)); err != nil {
					return err
				}
				if err := check("all_reduce "+op.String(), x, func(i int) int64 { return reduced(op, g.Size(), i) }); err != nil {
					return err
				}
			}
			root := (n + 1) % g.Size()
			x := filled(dt, n, g.Rank())
			if err := g.run(g.broadcast(ctx, x, root)); err != nil {
				return err
			}
			if err := check("broadcast", x, func(i int) int64 { return value(root, i) }); err != nil {
				return err
			}
			x, all := filled(dt, n, g.Rank()), private(dt, n*g.Size())
			if err := g.run(g.allGather(ctx, all, x)); err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			if err := check("all_gather", all, func(i int) int64 { return value(i/n, i%n) }); err != nil {
				return err
			}
			x = private(dt, max(1, n/g.Size()))
			all = filled(dt, x.NumElems*g.Size(), g.Rank())
			if err := g.run(g.reduceScatter(ctx, x, all, Sum)); err != nil {
				return err
			}
			if err := check("reduce_scatter", x, func(i int) int64 { return reduced(Sum, g.Size(), g.Rank()*x.NumElems+i) }); err != nil {
				return err
			}
			if err := check("the source of reduce_scatter", all, func(i int) int64 { return value(g.Rank(), i) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func reduced(op ReduceOp, n, i int) int64 {
	acc := value(0, i)
	for r := 1; r < n; r++ {
		switch v := value(r, i); op {
		case Sum:
			acc += v
		case Max:
			acc = max(acc, v)
		case Min:
			acc = min(acc, v)
		}
	}
	return acc
}

func TestCollectivesAgainstOracle(t *testing.T) {
	onEveryTransport(t, worldSizes, collectivesAgainstOracle)
}

// TestReduceScatterTensors checks the methods that take tensors.
func TestReduceScatterTensors(t *testing.T) {
	err := Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
		src := tensor.FromFloat32([]float32{1, 2, 3, 4 + float32(g.Rank())}, 4)
		dst := tensor.New(tensor.CPU(), tensor.Float32, 2)
		if err := g.ReduceScatter(ctx, dst, src, Sum); err != nil {
			return err
		}
		want := [][]float32{{2, 4}, {6, 9}}[g.Rank()]
		if got := dst.Float32s(); !slices.Equal(got, want) {
			return fmt.Errorf("rank %d has %v, want %v", g.Rank(), got, want)
		}
		if err := g.ReduceScatterAsync(ctx, dst, src, Max).Wait(ctx); err != nil {
			return err
		}
		if got, want := dst.Float32s(), [][]float32{{1, 2}, {3, 5}}[g.Rank()]; !slices.Equal(got, want) {
			return fmt.Errorf("asynchronous: rank %d has %v, want %v", g.Rank(), got, want)
		}
		if err := g.ReduceScatter(ctx, src, src, Sum); err == nil {
			return errors.New("a source as small as the destination was taken")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// messagesRoundTheRing sends from every rank to the next, all at once.
func messagesRoundTheRing(ctx context.Context, g *Group) error {
	if g.Size() == 1 {
		return nil
	}
	next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
	for _, dt := range dtypes {
		for _, n := range numElems {
			x, y := filled(dt, n, g.Rank()), private(dt, n)
			w := g.runAsync(g.send(ctx, x, next))
			if err := g.run(g.recv(ctx, y, prev)); err != nil {
				return err
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := check("recv", y, func(i int) int64 { return value(prev, i) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestMessages(t *testing.T) {
	onEveryTransport(t, worldSizes, messagesRoundTheRing)
}

// TestAsyncWorkKeepsItsOrder issues random collectives without waiting and
// checks the results afterwards; a synchronous one in between joins the line.
func TestAsyncWorkKeepsItsOrder(t *testing.T) {
	const seed = 7
	onEveryTransport(t, []int{1, 2, 4}, func(ctx context.Context, g *Group) error {
		rng := rand.New(rand.NewPCG(seed, 0)) // the same on every rank
		type job struct {
			w     *Work
			check func() error
		}
		var jobs []job
		for range 60 {
			n := rng.IntN(20_000)
			x := filled(collective.Float32, n, g.Rank())
			root := rng.IntN(g.Size())
			switch rng.IntN(4) {
			case 0:
				jobs = append(jobs, job{g.runAsync(g.allReduce(ctx, x, Sum)), func() error {
					return check("all_reduce", x, func(i int) int64 { return reduced(Sum, g.Size(), i) })
				}})
			case 1:
				jobs = append(jobs, job{g.runAsync(g.broadcast(ctx, x, root)), func() error {
					return check("broadcast", x, func(i int) int64 { return value(root, i) })
				}})
			case 2:
				jobs = append(jobs, job{g.BarrierAsync(ctx), func() error { return nil }})
			case 3:
				if err := g.run(g.allReduce(ctx, x, Max)); err != nil {
					return err
				}
				if err := check("all_reduce max", x, func(i int) int64 { return reduced(Max, g.Size(), i) }); err != nil {
					return err
				}
			}
		}
		for i, j := range jobs {
			if err := j.w.Wait(ctx); err != nil {
				return fmt.Errorf("seed %d, job %d: %w", seed, i, err)
			}
			if err := j.check(); err != nil {
				return fmt.Errorf("seed %d, job %d: %w", seed, i, err)
			}
		}
		return nil
	})
}

// TestReductionIsInRankOrder checks bits of sums that depend on the order.
func TestReductionIsInRankOrder(t *testing.T) {
	t.Setenv("COHORT_TOKEN", transport.NewToken().Text())
	for _, tr := range transports {
		for _, n := range []int{3, 5} {
			for _, count := range []int{100, 30_000} {
				if slices.Contains([]string{"tcp", "unix", "mixed"}, tr.name) && count > 1000 {
					continue // large data goes round the ring in another order
				}
				inputs := make([]collective.Data, n)
				want := private(collective.Float32, count)
				for r := range inputs {
					rng := rand.New(rand.NewPCG(uint64(r), 1))
					inputs[r] = private(collective.Float32, count)
					for i := range count {
						v := float32(rng.NormFloat64())
						*(*float32)(unsafe.Pointer(&inputs[r].Bytes()[i*4])) = v
						*(*float32)(unsafe.Pointer(&want.Bytes()[i*4])) += v
					}
				}
				err := tr.run(t.Context(), n, func(ctx context.Context, g *Group) error {
					x := inputs[g.Rank()]
					if err := g.run(g.allReduce(ctx, x, Sum)); err != nil {
						return err
					}
					if !bytes.Equal(x.Bytes(), want.Bytes()) {
						return fmt.Errorf("%d elements on rank %d: not the bits of a sum in rank order", count, g.Rank())
					}
					return nil
				})
				if err != nil {
					t.Errorf("%s/%d: %v", tr.name, n, err)
				}
			}
		}
	}
}
