// SPDX-License-Identifier: Apache-2.0

package native

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/mem"
)

// stingy is a space in which this rank lends nothing, or only its results.
type stingy struct {
	space
	outputs bool
}

func (s stingy) lend(rank int, c *operation.Call, d *collective.Data, out bool) (location, bool) {
	if !s.outputs || !out {
		return location{}, false
	}
	return s.space.lend(rank, c, d, out)
}

// worlds are groups of goroutine ranks that reach each other's data in
// different ways.
var worlds = map[string]func(n int) []*Shm{
	"reachable": func(n int) []*Shm { return testRanks(n, GoRanksOptions{}) },
	"private":   func(n int) []*Shm { return testRanks(n, GoRanksOptions{Private: true}) },
	"mixed": func(n int) []*Shm {
		ranks := testRanks(n, GoRanksOptions{})
		for r, s := range ranks {
			if r%3 == 1 {
				s.space = stingy{space: s.space}
			}
		}
		return ranks
	},
	"outputs": func(n int) []*Shm {
		ranks := testRanks(n, GoRanksOptions{})
		for _, s := range ranks {
			s.space = stingy{s.space, true}
		}
		return ranks
	},
}

func testRanks(n int, opts GoRanksOptions) []*Shm {
	return NewGoRanks(Config{Group: "test", Members: members(n), Topology: collective.OneNode(n), Timeout: 20 * time.Second}, opts)
}

// together runs one call on every rank and returns their errors.
func together(ranks []*Shm, call func(rank int) (operation.Call, collective.Data, collective.Data)) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for r, s := range ranks {
		wg.Go(func() {
			c, in, out := call(r)
			errs[r] = s.Collective(context.Background(), c, in, out)
		})
	}
	wg.Wait()
	return errs
}

// dataOf makes data of bytes.
func dataOf(d operation.DType, b []byte) collective.Data {
	return collective.Data{Buffer: mem.Buffer{Data: b}, DType: d, NumElems: len(b) / d.Size()}
}

// play is one collective of n ranks with what goes in and what must come out.
type play struct {
	calls   []operation.Call
	in, out [][]byte
	want    [][]byte
}

// newPlay makes a collective of an op on random data of about count elements a
// rank, in uneven parts if asked for.
func newPlay(rng *rand.Rand, n int, op operation.Op, red operation.ReduceOp, dt operation.DType, count int, uneven bool) *play {
	size := dt.Size()
	p := &play{calls: make([]operation.Call, n), in: make([][]byte, n), out: make([][]byte, n), want: make([][]byte, n)}
	root := rng.IntN(n)
	// cuts[r][q] is how many elements go from r to q.
	cuts := make([][]int, n)
	for r := range cuts {
		cuts[r] = make([]int, n)
		for q := range cuts[r] {
			cuts[r][q] = count
			if uneven {
				cuts[r][q] = rng.IntN(count + 1)
			}
		}
	}
	total := func(parts []int) (sum int) {
		for _, k := range parts {
			sum += k
		}
		return sum
	}
	at := func(parts []int, i int) int { return total(parts[:i]) * size }
	fresh := func(elems int) []byte {
		b := aligned(elems * size)
		for at := copy(b, numbers[dt][rng.IntN(numNumbers)*size:]); at < len(b); {
			at += copy(b[at:], numbers[dt])
		}
		return b
	}
	reduced := func(srcs [][]byte) []byte {
		d := aligned(len(srcs[0]))
		scaled := make([][]byte, n)
		for r := range srcs {
			f, err := collective.ReductionFor(p.calls[r].Reduce, dt, n)
			if err != nil {
				panic(err)
			}
			scaled[r] = aligned(len(d))
			f.Prepare(scaled[r], srcs[r])
		}
		f, _ := collective.ReductionFor(p.calls[0].Reduce, dt, n)
		f.All(d, scaled)
		return d
	}
	for r := range n {
		c := operation.Call{Op: op, DType: dt, Count: count}
		if op.Reduces() {
			c.Reduce = red
			if red.Kind() == operation.PremulSum(1).Kind() {
				c.Reduce = operation.PremulSum(float32(r + 1))
			}
		}
		if op.Rooted() {
			c.Root = root
		}
		switch op {
		case operation.AllReduce, operation.Broadcast:
			p.out[r] = fresh(count)
			p.in[r] = p.out[r]
		case operation.Reduce:
			p.in[r] = fresh(count)
			if r == root {
				p.out[r] = p.in[r]
			}
		case operation.AllGather:
			if uneven {
				c.SetParts(cuts[0], r)
			}
			p.in[r], p.out[r] = fresh(cuts[0][r]), make([]byte, total(cuts[0])*size)
		case operation.Gather:
			c.Count = cuts[0][r]
			p.in[r] = fresh(c.Count)
			if r == root {
				p.out[r] = make([]byte, total(cuts[0])*size)
				if uneven {
					c.Parts = cuts[0]
				}
			}
		case operation.ReduceScatter:
			if uneven {
				c.SetParts(cuts[0], r)
			}
			p.in[r], p.out[r] = fresh(total(cuts[0])), make([]byte, cuts[0][r]*size)
		case operation.Scatter:
			c.Count = cuts[0][r]
			p.out[r] = make([]byte, c.Count*size)
			if r == root {
				p.in[r] = fresh(total(cuts[0]))
				if uneven {
					c.Parts = cuts[0]
				}
			}
		case operation.AllToAll:
			recvs := make([]int, n)
			for q := range n {
				recvs[q] = cuts[q][r]
			}
			if uneven {
				c.Parts, c.Recvs = cuts[r], recvs
			}
			p.in[r], p.out[r] = fresh(total(cuts[r])), make([]byte, total(recvs)*size)
		}
		p.calls[r] = c
	}
	for r := range n {
		switch op {
		case operation.AllReduce, operation.Reduce:
			p.want[r] = p.out[r]
			if p.out[r] != nil {
				p.want[r] = reduced(p.in)
			}
		case operation.Broadcast:
			p.want[r] = bytes.Clone(p.in[root])
		case operation.AllGather:
			p.want[r] = bytes.Join(p.in, nil)
		case operation.Gather:
			if r == root {
				p.want[r] = bytes.Join(p.in, nil)
			}
		case operation.ReduceScatter:
			srcs := make([][]byte, n)
			for q := range n {
				srcs[q] = p.in[q][at(cuts[0], r):][:cuts[0][r]*size]
			}
			p.want[r] = reduced(srcs)
		case operation.Scatter:
			p.want[r] = bytes.Clone(p.in[root][at(cuts[0], r):][:cuts[0][r]*size])
		case operation.AllToAll:
			for q := range n {
				p.want[r] = append(p.want[r], p.in[q][at(cuts[q], r):][:cuts[q][r]*size]...)
			}
		}
	}
	return p
}

// numbers are random ones whose sums are not exact, so that their order shows.
var numbers = func() map[operation.DType][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	f32, bf16 := make([]byte, 0, 4*numNumbers), make([]byte, 0, 2*numNumbers)
	for range numNumbers {
		v := math.Float32bits(float32(rng.NormFloat64()))
		f32 = binary.LittleEndian.AppendUint32(f32, v)
		bf16 = binary.LittleEndian.AppendUint16(bf16, uint16(v>>16))
	}
	return map[operation.DType][]byte{operation.Float32: f32, operation.BFloat16: bf16}
}()

// numNumbers is prime: a part in another's place shows.
const numNumbers = 10_007

// run plays it on the ranks as call seq.
func (p *play) run(ranks []*Shm, seq uint64) error {
	before := make([][]byte, len(ranks))
	for r := range ranks {
		before[r] = bytes.Clone(p.in[r])
	}
	sent, mixed := make([]int64, len(ranks)), false
	for r, s := range ranks {
		sent[r] = s.Sent()
		if _, ok := s.space.(stingy); ok { // nobody can say beforehand how a reduction is cut
			mixed = p.calls[r].Op == operation.AllReduce || p.calls[r].Op == operation.Reduce
		}
	}
	errs := together(ranks, func(r int) (operation.Call, collective.Data, collective.Data) {
		c := p.calls[r]
		c.Seq = seq
		return c, dataOf(c.DType, p.in[r]), dataOf(c.DType, p.out[r])
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for r := range ranks {
		if !bytes.Equal(p.out[r], p.want[r]) {
			return fmt.Errorf("rank %d of %d: the result of %v is wrong", r, len(ranks), p.calls[r])
		}
		want, err := ranks[r].Sends(&p.calls[r], false)
		if err != nil {
			return err
		}
		if got := ranks[r].Sent() - sent[r]; got != want && !mixed {
			return fmt.Errorf("rank %d of %d: %v gave %d bytes, predicted were %d", r, len(ranks), p.calls[r], got, want)
		}
		same := len(p.in[r]) > 0 && len(p.out[r]) > 0 && &p.in[r][0] == &p.out[r][0]
		if !same && !bytes.Equal(p.in[r], before[r]) {
			return fmt.Errorf("rank %d of %d: %v has changed its input", r, len(ranks), p.calls[r])
		}
	}
	return nil
}

var allOps = []operation.Op{operation.AllReduce, operation.Broadcast, operation.AllGather, operation.ReduceScatter,
	operation.Reduce, operation.Gather, operation.Scatter, operation.AllToAll}

// TestEveryOpEveryWay runs every operation on data that passes beside the
// call, in place, through slots, or differently from rank to rank.
func TestEveryOpEveryWay(t *testing.T) {
	const seed = 11
	for name, world := range worlds {
		for _, n := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				ranks, seq := world(n), uint64(0)
				border := eagerSize(n)
				for _, op := range allOps {
					// Around what lies beside the call, a round of slots, and all slots.
					for _, bytes := range []int{0, 4, 12, border / n, border, border + 4, slotSize / n, slotSize + 4, 5*slotSize + 20} {
						if bytes > slotSize && deals(op) {
							bytes = bytes/n&^3 + 4
						}
						for _, uneven := range []bool{false, true} {
							seq++
							if err := newPlay(rng, n, op, operation.Sum, operation.Float32, bytes/4, uneven).run(ranks, seq); err != nil {
								t.Fatalf("seed %d: %d bytes, uneven %v: %v", seed, bytes, uneven, err)
							}
						}
					}
				}
			})
		}
	}
}

// TestReductionsOfEveryKind: averages and premultiplied sums of floats that are
// computed in another type, on every way.
func TestReductionsOfEveryKind(t *testing.T) {
	const seed = 12
	for name, world := range worlds {
		const n = 3
		rng := rand.New(rand.NewPCG(seed, n))
		ranks, seq := world(n), uint64(0)
		for _, op := range []operation.Op{operation.AllReduce, operation.ReduceScatter, operation.Reduce} {
			for _, red := range []operation.ReduceOp{operation.Avg, operation.Max, operation.PremulSum(1)} {
				for _, dt := range []operation.DType{operation.Float32, operation.BFloat16} {
					for _, count := range []int{5, 30_001, 200_001} {
						seq++
						if err := newPlay(rng, n, op, red, dt, count, false).run(ranks, seq); err != nil {
							t.Fatalf("%s, seed %d: %v", name, seed, err)
						}
					}
				}
			}
		}
	}
}

// TestManyRanks runs what is done differently in large groups.
func TestManyRanks(t *testing.T) {
	const n, seed = flatLimit + 20, 13
	rng := rand.New(rand.NewPCG(seed, n))
	ranks, seq := testRanks(n, GoRanksOptions{}), uint64(0)
	for _, op := range allOps {
		for _, count := range []int{1, 100, 5000} {
			seq++
			if err := newPlay(rng, n, op, operation.Sum, operation.Float32, count, true).run(ranks, seq); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// TestMismatchInALargeGroup: a rank that calls something else is named on all.
func TestMismatchInALargeGroup(t *testing.T) {
	const n, odd = 3*fanOut + 5, 2*fanOut + 3
	ranks := testRanks(n, GoRanksOptions{})
	errs := together(ranks, func(r int) (operation.Call, collective.Data, collective.Data) {
		c := operation.Call{Op: operation.Barrier, Seq: 1}
		if r == odd {
			c.Op, c.DType = operation.AllReduce, operation.Float32
		}
		return c, collective.Data{DType: operation.Float32}, collective.Data{DType: operation.Float32}
	})
	for r, err := range errs {
		var m *fault.MismatchError
		if !errors.As(err, &m) || m.Here.Rank != odd && m.There.Rank != odd {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

// TestTimeoutNamesTheMissingInALargeGroup leaves two ranks out.
func TestTimeoutNamesTheMissingInALargeGroup(t *testing.T) {
	const n = 2*fanOut + 9
	ranks := testRanks(n, GoRanksOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), min(loaded.Allow(500*time.Millisecond), 3*time.Second)) // in which the others come
	defer cancel()
	var wg sync.WaitGroup
	for r, s := range ranks {
		if r == 3 || r == n-1 {
			continue
		}
		wg.Go(func() {
			err := s.Collective(ctx, operation.Call{Op: operation.Barrier, Seq: 1}, collective.Data{}, collective.Data{})
			var late *fault.TimeoutError
			if errors.As(err, &late) {
				if len(late.Missing) != 2 || late.Missing[0].Rank != 3 || late.Missing[1].Rank != n-1 {
					t.Errorf("rank %d misses %v", r, late.Missing)
				}
			} else if err == nil {
				t.Errorf("rank %d passed the barrier", r)
			}
		})
	}
	wg.Wait()
}

// TestSizesThatDoNotFit: where a count is a rank's own affair, its receiver
// notices.
func TestSizesThatDoNotFit(t *testing.T) {
	f32 := operation.Float32
	for name, call := range map[string]func(r int) (operation.Call, collective.Data, collective.Data){
		"gather": func(r int) (operation.Call, collective.Data, collective.Data) {
			c := operation.Call{Op: operation.Gather, DType: f32, Count: 10 + r}
			return c, dataOf(f32, make([]byte, 4*c.Count)), dataOf(f32, make([]byte, 80*(1-r)))
		},
		"scatter": func(r int) (operation.Call, collective.Data, collective.Data) {
			c := operation.Call{Op: operation.Scatter, DType: f32, Count: 10 + r}
			return c, dataOf(f32, make([]byte, 80*(1-r))), dataOf(f32, make([]byte, 4*c.Count))
		},
		"all_to_all": func(r int) (operation.Call, collective.Data, collective.Data) {
			c := operation.Call{Op: operation.AllToAll, DType: f32, Layout: 1, Parts: []int{5, 5 + r}, Recvs: []int{5, 6}}
			return c, dataOf(f32, make([]byte, 40+4*r)), dataOf(f32, make([]byte, 44))
		},
	} {
		ranks := testRanks(2, GoRanksOptions{})
		errs := together(ranks, func(r int) (operation.Call, collective.Data, collective.Data) {
			c, in, out := call(r)
			c.Seq = 1
			return c, in, out
		})
		var m *fault.MismatchError
		if !errors.As(errors.Join(errs...), &m) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

// TestLiesInSharedMemory writes nonsense where peers write and wants errors.
func TestLiesInSharedMemory(t *testing.T) {
	const n, size = 2, 40 << 10
	f32 := operation.Float32
	for name, tc := range map[string]struct {
		c   operation.Call
		lie func(rec *record, table []uint64)
	}{
		"table beyond the data": {operation.Call{Op: operation.AllToAll, Layout: 1, Parts: []int{5120, 5120}, Recvs: []int{5120, 5120}},
			func(_ *record, table []uint64) { table[0], table[1] = 10_000, 15_120 }},
		"table that wraps around": {operation.Call{Op: operation.AllToAll, Layout: 1, Parts: []int{5120, 5120}, Recvs: []int{5120, 5120}},
			func(_ *record, table []uint64) { table[0], table[1] = math.MaxUint64-5119, 0 }},
		"data said to lie beside the call": {operation.Call{Op: operation.AllToAll, Count: 5120},
			func(rec *record, _ []uint64) { rec.ways = inBeside }},
		"count that wraps around": {operation.Call{Op: operation.AllToAll, Count: 5120},
			func(rec *record, _ []uint64) { rec.count = 1 << 63 }},
		"gathered data beside the call": {operation.Call{Op: operation.Gather, Count: size / 4},
			func(rec *record, _ []uint64) { rec.ways = inBeside }},
	} {
		ranks := testRanks(n, GoRanksOptions{})
		c := tc.c
		c.DType, c.Seq = f32, 1
		out := dataOf(f32, make([]byte, n*size))
		// Rank 1 has come, as far as its memory tells, and says what it likes.
		rec := &ranks[1].call(1, 1).record
		rec.fill(&c)
		table := ranks[1].seg.table(1, 1)
		for i := range table {
			table[i] = uint64(i * 5120)
		}
		if c.Parts != nil {
			rec.ways |= inTable
			out.NumElems = 10_240
		}
		tc.lie(rec, table)
		ranks[1].space.(*goWorld).lent[1][1].in = make([]byte, size)
		if rec.ways&inBeside == 0 {
			rec.ways |= inLent
		}
		ranks[1].post(&c, entryFlag, 1)
		ranks[1].post(&c, overFlag, 1)
		if c.Op == operation.AllToAll {
			out.NumElems = 10_240
		}
		err := ranks[0].Collective(t.Context(), c, dataOf(f32, make([]byte, size)), out)
		if err == nil || strings.Contains(err.Error(), "timed out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSmallCallsNeedNoMemory counts allocations of a steady loop.
func TestSmallCallsNeedNoMemory(t *testing.T) {
	const n, reps = 2, 200
	ranks := testRanks(n, GoRanksOptions{})
	data := [n]collective.Data{dataOf(operation.Float32, aligned(64)), dataOf(operation.Float32, aligned(64))}
	var seqs [n]uint64
	loop := func(r int) {
		for range reps {
			seqs[r]++
			c := operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: 16, Seq: seqs[r]}
			if err := ranks[r].Collective(context.Background(), c, data[r], data[r]); err != nil {
				t.Error(err)
			}
		}
	}
	if got := testing.AllocsPerRun(10, func() {
		done := make(chan struct{})
		go func() { loop(1); close(done) }()
		loop(0)
		<-done
	}); got > reps/4 { // a goroutine, a channel, and what the collector throws out of pools
		t.Errorf("%v allocations in %d all-reduces of %d ranks", got, reps, n)
	}
}

// TestAnyMessageSleeps: a wait for a message from anybody ends soon after one
// comes, on ranks that have long been asleep.
func TestAnyMessageSleeps(t *testing.T) {
	const n = 4
	ranks := testRanks(n, GoRanksOptions{})
	got := make(chan int)
	go func() {
		src, err := ranks[0].AwaitAny(t.Context(), operation.Call{Op: operation.Recv, DType: operation.Float32, Count: 1, Root: operation.AnyRank})
		if err != nil {
			t.Error(err)
		}
		got <- src
	}()
	bell := &ranks[0].seg.block(0).bell
	for bell.sleepers.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	c := operation.Call{Op: operation.Send, DType: operation.Float32, Count: 1, Root: 0, Seq: 1}
	if err := ranks[2].Send(t.Context(), c, dataOf(operation.Float32, make([]byte, 4))); err != nil {
		t.Fatal(err)
	}
	if src := <-got; src != 2 {
		t.Errorf("the message came from rank %d, want 2", src)
	}
	if bell.sleepers.Load() != 0 {
		t.Error("somebody still waits")
	}
}
