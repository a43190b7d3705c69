// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/mem"
)

// config is what ranks of the tests have.
func config(s store.Store, g Generation, rank, size int) Config {
	return Config{Group: "world", Rank: rank, Members: make([]fault.Member, size), Store: s, Generation: g,
		Hostname: fmt.Sprintf("host%d", rank), Timeout: time.Minute}
}

// together runs a rank's part on all ranks of a group at once. With change, ranks
// have another configuration.
func together(t testing.TB, g Generation, size int, change func(*Config), part func(b *Communicator) error) {
	t.Helper()
	s := store.Prefix(store.NewMemory(), "default_pg")
	var all sync.WaitGroup
	for r := range size {
		all.Go(func() {
			cfg := config(s, g, r, size)
			if change != nil {
				change(&cfg)
			}
			ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
			defer cancel()
			b, err := Open(ctx, cfg)
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			defer b.Close()
			if err := part(b); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			// Nobody leaves before all have come.
			if b.why() == nil {
				if err := b.Collective(context.Background(), operation.Call{Op: operation.Barrier, Seq: 1 << 30}, collective.Data{}, collective.Data{}); err != nil {
					t.Errorf("rank %d: the last barrier: %v", r, err)
				}
			}
		})
	}
	all.Wait()
}

func dataOf(b []byte, d operation.DType) collective.Data {
	return collective.Data{Buffer: mem.Buffer{Data: b}, DType: d, NumElems: len(b) / d.Size()}
}

func floats(n int, f func(i int) float32) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(f(i)))
	}
	return b
}

func checkFloats(what string, b []byte, f func(i int) float32) error {
	for i := range len(b) / 4 {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])); got != f(i) {
			return fmt.Errorf("%s: element %d of %d is %v, want %v", what, i, len(b)/4, got, f(i))
		}
	}
	return nil
}

// everything runs all operations with so many elements.
func everything(b *Communicator, elems int) error {
	ctx := context.Background()
	n, me := len(b.cfg.Members), b.cfg.Rank
	seq := uint64(b.Tag())
	run := func(c operation.Call, in, out []byte) error {
		seq++
		c.Seq, c.DType = seq, operation.Float32
		var src, dst collective.Data
		if in != nil {
			src = dataOf(in, operation.Float32)
		}
		if out != nil {
			dst = dataOf(out, operation.Float32)
		}
		if err := b.Collective(ctx, c, src, dst); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		return nil
	}
	value := func(rank, to, i int) float32 { return float32(rank*100 + to*10 + i%1000) }
	own := func(to int) []byte { return floats(elems, func(i int) float32 { return value(me, to, i) }) }
	sum := func(i int) float32 {
		var s float32
		for r := range n {
			s += value(r, 0, i)
		}
		return s
	}
	at := func(i int) (rank, j int) {
		if elems == 0 {
			return 0, 0
		}
		return i / elems, i % elems
	}
	var err error
	check := func(e error) {
		if err == nil {
			err = e
		}
	}
	v := own(0)
	check(run(operation.Call{Op: operation.AllReduce, Count: elems}, v, v))
	check(checkFloats("all_reduce", v, sum))
	v = own(0)
	check(run(operation.Call{Op: operation.AllReduce, Reduce: operation.Max, Count: elems}, v, v))
	check(checkFloats("all_reduce max", v, func(i int) float32 { return value(n-1, 0, i) }))
	for root := range n {
		v = own(0)
		check(run(operation.Call{Op: operation.Broadcast, Root: root, Count: elems}, v, v))
		check(checkFloats("broadcast", v, func(i int) float32 { return value(root, 0, i) }))
		v = own(0)
		if me == root {
			check(run(operation.Call{Op: operation.Reduce, Root: root, Count: elems}, v, v))
			check(checkFloats("reduce", v, sum))
		} else {
			check(run(operation.Call{Op: operation.Reduce, Root: root, Count: elems}, v, nil))
			check(checkFloats("reduce's input", v, func(i int) float32 { return value(me, 0, i) }))
		}
		var all []byte
		if me == root {
			all = make([]byte, 4*n*elems)
		}
		check(run(operation.Call{Op: operation.Gather, Root: root, Count: elems}, own(0), all))
		check(checkFloats("gather", all, func(i int) float32 { r, j := at(i); return value(r, 0, j) }))
		if me == root {
			for r := range n {
				copy(all[4*elems*r:], own(r))
			}
		}
		v = make([]byte, 4*elems)
		check(run(operation.Call{Op: operation.Scatter, Root: root, Count: elems}, all, v))
		check(checkFloats("scatter", v, func(i int) float32 { return value(root, me, i) }))
	}
	all := make([]byte, 4*n*elems)
	check(run(operation.Call{Op: operation.AllGather, Count: elems}, own(0), all))
	check(checkFloats("all_gather", all, func(i int) float32 { r, j := at(i); return value(r, 0, j) }))
	in := make([]byte, 0, 4*n*elems)
	for r := range n {
		in = append(in, own(r)...)
	}
	check(run(operation.Call{Op: operation.AllToAll, Count: elems}, in, all))
	check(checkFloats("all_to_all", all, func(i int) float32 { r, j := at(i); return value(r, me, j) }))
	v = make([]byte, 4*elems)
	check(run(operation.Call{Op: operation.ReduceScatter, Count: elems}, in, v))
	check(checkFloats("reduce_scatter", v, func(i int) float32 {
		var s float32
		for r := range n {
			s += value(r, me, i)
		}
		return s
	}))
	check(run(operation.Call{Op: operation.Barrier}, nil, nil))
	check(b.MonitoredBarrier(ctx, operation.Call{Op: operation.Barrier}, false))
	check(messages(b, elems))
	return err
}

// messages sends around the ring, and to rank 0, which takes from any.
func messages(b *Communicator, elems int) error {
	ctx := context.Background()
	n, me := len(b.cfg.Members), b.cfg.Rank
	v := floats(elems, func(i int) float32 { return float32(me + i) })
	got := make([]byte, 4*elems)
	sent := make(chan error, 1)
	go func() {
		c := operation.Call{Op: operation.Send, Root: (me + 1) % n, Count: elems, DType: operation.Float32, Seq: 1}
		sent <- b.Send(ctx, c, dataOf(v, operation.Float32))
	}()
	from := (me + n - 1) % n
	c := operation.Call{Op: operation.Recv, Root: from, Count: elems, DType: operation.Float32, Seq: 1}
	err := errors.Join(b.Recv(ctx, c, dataOf(got, operation.Float32)), <-sent,
		checkFloats("recv", got, func(i int) float32 { return float32(from + i) }))
	if err != nil || elems == 0 { // nothing is what PyTorch does not take from any
		return err
	}
	if me != 0 {
		c := operation.Call{Op: operation.Send, Root: 0, Count: elems, DType: operation.Float32, Seq: 2}
		return b.Send(ctx, c, dataOf(v, operation.Float32))
	}
	seen := map[int]bool{}
	for range n - 1 {
		c := operation.Call{Op: operation.Recv, Root: operation.AnyRank, Count: elems, DType: operation.Float32}
		src, err := b.AwaitAny(ctx, c)
		if err != nil {
			return err
		}
		if seen[src] {
			return fmt.Errorf("two messages from rank %d", src)
		}
		seen[src] = true
		c.Root, c.Seq = src, 2
		if err := b.Recv(ctx, c, dataOf(got, operation.Float32)); err != nil {
			return err
		}
		if err := checkFloats("recv from any", got, func(i int) float32 { return float32(src + i) }); err != nil {
			return err
		}
	}
	return nil
}

// TestNothingIsAllocated by a collective that has run before.
func TestNothingIsAllocated(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	together(t, PerDevice, 2, nil, func(b *Communicator) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		data := dataOf(make([]byte, 4<<10), operation.Float32)
		one := func() {
			c := operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 1 << 10}
			if err := b.Collective(ctx, c, data, data); err != nil {
				t.Error(err)
			}
		}
		const runs = 200
		for range runs {
			one()
		}
		// Both ranks are counted. AllocsPerRun runs once more than it is told.
		if n := testing.AllocsPerRun(runs, one); b.cfg.Rank == 0 && n >= 1 {
			t.Errorf("%v allocations in an all-reduce of two ranks", n)
		}
		return nil
	})
}

// TestOperations runs all operations among Go ranks, met in both ways.
func TestOperations(t *testing.T) {
	for _, g := range []Generation{PerPair, PerDevice} {
		for _, size := range []int{1, 2, 3, 5} {
			for _, elems := range []int{0, 1, 3, 1000, 300001} {
				if size == 1 && elems != 3 || size == 5 && elems > 1000 {
					continue
				}
				t.Run(fmt.Sprintf("generation%d/ranks%d/elems%d", g, size, elems), func(t *testing.T) {
					together(t, g, size, nil, func(b *Communicator) error {
						if size == 1 {
							return nil
						}
						return everything(b, elems)
					})
				})
			}
		}
	}
}
