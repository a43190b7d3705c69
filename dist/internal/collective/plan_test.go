// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// trial is a collective of a group as the tests play it.
type trial struct {
	op     operation.Op
	dtype  operation.DType
	count  int
	root   int
	uneven bool // in parts
	top    Topology
	piece  int
	strict bool
}

func (tr trial) String() string {
	return fmt.Sprintf("%v of %d over nodes %v, root %d, uneven %v, pieces of %d", tr.op, tr.count, tr.top.Node, tr.root, tr.uneven, tr.piece)
}

// amount is how much one rank has for another in an uneven call.
func (tr trial) amount(from, to int) int { return (tr.count*(from+1) + 3*to) % (tr.count + 5) }

// part is the size of a rank's part in an uneven call.
func (tr trial) part(rank int) int { return tr.amount(rank, 0) }

func (tr trial) call(rank int) *operation.Call {
	n := tr.top.NumRanks()
	c := &operation.Call{Op: tr.op, DType: tr.dtype, Count: tr.count, Seq: 1}
	if tr.op.Rooted() {
		c.Root = tr.root
	}
	if !tr.uneven {
		switch tr.op {
		case operation.Gather, operation.Scatter:
			c.SetEven()
		}
		return c
	}
	parts := make([]int, n)
	for r := range parts {
		parts[r] = tr.part(r)
	}
	switch tr.op {
	case operation.AllGather, operation.ReduceScatter:
		c.SetParts(parts, rank)
	case operation.Gather, operation.Scatter:
		c.Count = parts[rank]
		if rank == tr.root {
			c.Parts = parts
		}
	case operation.AllToAll:
		sends, recvs := make([]int, n), make([]int, n)
		for r := range n {
			sends[r], recvs[r] = tr.amount(rank, r), tr.amount(r, rank)
		}
		c.SetExchange(sends, recvs)
	}
	return c
}

func (tr trial) problems() ([]*problem, error) {
	ps := make([]*problem, tr.top.NumRanks())
	l := layoutFor(tr.top)
	for r := range ps {
		p, err := problemFor(tr.call(r), r, l, Options{Deterministic: tr.strict})
		if err != nil {
			return nil, err
		}
		if p.piece = tr.piece; p.piece == 0 {
			p.piece = PieceBytes / max(1, tr.dtype.Size())
		}
		p.align = 4
		ps[r] = p
	}
	return ps, nil
}

// element is what a rank has, or what it has for another.
func element[E number](rank, to, i int) E {
	return E(rank*1000003+to*4099+i*17) * scale[E](rank)
}

// scale makes sums of floats depend on their order.
func scale[E number](rank int) E {
	var e E
	if _, float := any(e).(float32); float && rank%3 == 1 {
		return E(1<<20) + 1
	}
	return 1
}

// sum is the sum over the ranks in their order.
func sum[E number](n, to, i int) E {
	s := element[E](0, to, i)
	for r := 1; r < n; r++ {
		s += element[E](r, to, i)
	}
	return s
}

// data returns the inputs and outputs of all ranks before a call, and the
// outputs after it.
func data[E number](tr trial, ps []*problem) (in, out, want [][]E) {
	n := len(ps)
	var total []E // of whole vectors
	if tr.op == operation.AllReduce || tr.op == operation.Reduce {
		for i := range tr.count {
			total = append(total, sum[E](n, 0, i))
		}
	}
	in, out, want = make([][]E, n), make([][]E, n), make([][]E, n)
	for r, p := range ps {
		numOut, numIn := p.regions()
		if p.idle {
			numOut, numIn = 0, 0
		}
		out[r], in[r] = make([]E, numOut), make([]E, numIn)
		add := func(to *[]E, count int, f func(i int) E) {
			for i := range count {
				*to = append(*to, f(i))
			}
		}
		whole := func(to []E) {
			for i := range to {
				to[i] = element[E](r, 0, i)
			}
		}
		blocksOf := func(q *problem, f func(rank, i int) E) {
			for s := range n {
				add(&want[r], q.block(s).Len(), func(i int) E { return f(s, i) })
			}
		}
		if p.idle {
			continue
		}
		switch c := p.c; tr.op {
		case operation.AllReduce:
			whole(out[r])
			want[r] = total[:numOut]
		case operation.Broadcast:
			whole(out[r])
			add(&want[r], numOut, func(i int) E { return element[E](c.Root, 0, i) })
		case operation.Reduce:
			whole(out[r])
			whole(in[r])
			want[r] = total[:numOut]
		case operation.AllGather:
			whole(in[r])
			blocksOf(p, func(s, i int) E { return element[E](s, 0, i) })
		case operation.Gather:
			whole(in[r])
			if numOut > 0 {
				blocksOf(p, func(s, i int) E { return element[E](s, 0, i) })
			}
		case operation.ReduceScatter, operation.Scatter:
			in[r] = in[r][:0]
			if numIn > 0 {
				for s := range n {
					add(&in[r], p.block(s).Len(), func(i int) E { return element[E](r, s, i) })
				}
			}
			add(&want[r], numOut, func(i int) E {
				if tr.op == operation.Scatter {
					return element[E](c.Root, r, i)
				}
				return sum[E](n, r, i)
			})
		case operation.AllToAll:
			in[r] = in[r][:0]
			sends, recvs := startsOf(c.Parts), startsOf(c.Recvs)
			for s := range n {
				add(&in[r], blockOf(sends, s, c.Count).Len(), func(i int) E { return element[E](r, s, i) })
				add(&want[r], blockOf(recvs, s, c.Count).Len(), func(i int) E { return element[E](s, r, i) })
			}
		}
	}
	return in, out, want
}

// play runs an algorithm and compares what comes out. check compares elements.
func play[E number](tr trial, a *algorithm, room, careful bool, same func(got, want E) bool) error {
	ps, err := tr.problems()
	if err != nil {
		return err
	}
	in, out, want := data[E](tr, ps)
	plans := make([]Plan, len(ps))
	for r, p := range ps {
		plans[r] = p.plan(a)
	}
	before := make([][]E, len(in))
	for r := range in {
		before[r] = slices.Clone(in[r])
	}
	s := simulation[E]{plans: plans, in: in, out: out, room: room, careful: careful}
	if err := s.run(); err != nil {
		return err
	}
	for r := range ps {
		if !slices.EqualFunc(out[r], want[r], same) {
			return fmt.Errorf("rank %d has %v, want %v", r, out[r], want[r])
		}
		if !slices.Equal(in[r], before[r]) {
			return fmt.Errorf("rank %d's input has changed", r)
		}
	}
	return nil
}

func equalTo[E number](got, want E) bool { return got == want }

// topologies are places for n ranks: with levels, and first the one without.
func topologies(n int) []Topology {
	ts := []Topology{Apart(n)}
	add := func(node func(r int) int) {
		t := OneNode(n)
		for r := range t.Node {
			t.Node[r] = node(r)
		}
		ts = append(ts, t)
	}
	add(func(r int) int { return r / 2 })
	add(func(r int) int { return r % 2 })       // in turns
	add(func(r int) int { return r / 4 })       // the last may have fewer
	add(func(r int) int { return min(r/3, 2) }) // the last has most
	return ts
}

// inParallel runs f for each number on all cores.
func inParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	wg.Wait()
}

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // simulated ranks leave much behind, and little stays
	os.Exit(m.Run())
}

// TestAlgorithms plays every algorithm of every operation for all group sizes up
// to 33, with whole and empty and uneven parts, in pieces and whole, with room
// on the way and without: of more than five ranks a sample (see -all).
func TestAlgorithms(t *testing.T) {
	inParallel(33, func(i int) {
		n := 33 - i
		pick := sample(n)
		for op := operation.Barrier; int(op) < len(tables); op++ {
			for a := range tables[op] {
				a := &tables[op][a]
				for ti, top := range topologies(n) {
					if ti > 0 && a.fits == nil && n > 8 {
						continue
					}
					for _, tr := range trials(op, n, top) {
						if n > 5 && !pick(4) {
							continue
						}
						if t.Failed() {
							return
						}
						ps, err := tr.problems()
						if err != nil {
							t.Error(err)
							return
						}
						if ps[0].idle != (op == operation.Barrier) || !ps[0].allows(a) {
							continue
						}
						for _, room := range []bool{true, false} {
							if err := play(tr, a, room, tr.piece > 20 && n <= 12, equalTo[int64]); err != nil {
								t.Errorf("seed %d: %s, room %v: %v: %v", *seed, a.name, room, tr, err)
							}
						}
					}
				}
			}
		}
	})
}

func trials(op operation.Op, n int, top Topology) []trial {
	var ts []trial
	for _, count := range []int{0, 1, 9, 50} {
		if op == operation.Barrier && count > 0 {
			break
		}
		for _, piece := range []int{7, 1000} {
			for _, uneven := range []bool{false, true} {
				if uneven && !slices.Contains([]operation.Op{operation.AllGather, operation.ReduceScatter, operation.Gather, operation.Scatter, operation.AllToAll}, op) {
					continue
				}
				if n > 9 && (count == 50 || count == 1 || uneven) == (piece < 20) {
					continue // much of the same
				}
				ts = append(ts, trial{op: op, dtype: operation.Int64, count: count, root: (count + n/2) % n, uneven: uneven, top: top, piece: piece})
			}
		}
	}
	return ts
}

// TestOrderOfRanks: what is called exact adds in the order of ranks, and so
// gives the same bits whatever the topology; what is not gives all ranks of an
// all-reduce the same bits.
func TestOrderOfRanks(t *testing.T) {
	for op := range tables {
		if !operation.Op(op).Reduces() {
			continue
		}
		for i := range tables[op] {
			a := &tables[op][i]
			for _, n := range []int{2, 3, 5, 8, 13} {
				for _, top := range topologies(n) {
					tr := trial{op: operation.Op(op), dtype: operation.Float32, count: 40, root: n / 2, top: top, piece: 6}
					ps, err := tr.problems()
					if err != nil {
						t.Fatal(err)
					}
					if !ps[0].allows(a) {
						continue
					}
					if a.exact {
						if err := play(tr, a, true, false, equalTo[float32]); err != nil {
							t.Errorf("%s: %v: %v", a.name, tr, err)
						}
						continue
					}
					if operation.Op(op) != operation.AllReduce {
						continue
					}
					first := map[int]float32{}
					at := 0
					if err := play(tr, a, true, false, func(got, _ float32) bool {
						i := at % tr.count
						at++
						if at <= tr.count {
							first[i] = got
						}
						return got == first[i]
					}); err != nil {
						t.Errorf("%s: %v: ranks differ: %v", a.name, tr, err)
					}
				}
			}
		}
	}
	// And asked for, only such are chosen.
	for op := range tables {
		if !operation.Op(op).Reduces() {
			continue
		}
		for _, n := range []int{2, 3, 64, 100} {
			for _, top := range topologies(n) {
				for _, count := range []int{1, 1000, 1 << 20} {
					tr := trial{op: operation.Op(op), dtype: operation.BFloat16, count: count, top: top, strict: true}
					ps, err := tr.problems()
					if err != nil {
						t.Fatal(err)
					}
					if a, why := ps[n-1].choose(); a == nil || !a.exact {
						t.Errorf("%v: %s", tr, why)
					}
				}
			}
		}
	}
}

// TestManyRanks plays what is chosen for many ranks, a sample (see -all).
func TestManyRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seed, 0))
	pick := sample(0)
	for _, n := range []int{64, 100, 255, 1024, 4096} {
		for op := operation.Barrier; int(op) < len(tables); op++ {
			if tables[op] == nil {
				continue
			}
			for i, top := range topologies(n)[:4] {
				if n > 256 && i > 0 && (int(op)+i)%3 > 0 {
					continue
				}
				if !pick(3) {
					continue
				}
				count := []int{1, n}[rng.IntN(2)]
				switch op {
				case operation.AllGather, operation.ReduceScatter, operation.AllToAll, operation.Gather, operation.Scatter:
					count = 1
					if n > 256 {
						continue // n times n elements
					}
				}
				tr := trial{op: op, dtype: operation.Int64, count: count, root: rng.IntN(n), top: top, piece: 1 << 14}
				ps, err := tr.problems()
				if err != nil {
					t.Fatal(err)
				}
				a, _ := ps[0].choose()
				if err := play(tr, a, true, false, equalTo[int64]); err != nil {
					t.Errorf("seed %d: %s: %d ranks, topology %d: %v", *seed, a.name, n, i, err)
				}
			}
		}
	}
}

// TestPlanForEverything: there is a plan for every collective, which keeps to
// the size of a piece, and none for anything else.
func TestPlanForEverything(t *testing.T) {
	for op := operation.Op(0); op <= operation.AllToAll+1; op++ {
		message := op == operation.Send || op == operation.Recv
		for _, n := range []int{1, 2, 3, 8} {
			for _, count := range []int{0, 1, 300, 200_000} {
				for rank := range n {
					c := operation.Call{Op: op, DType: operation.Int64, Count: count, Root: n - 1}
					p, err := PlanFor(&c, rank, OneNode(n), Options{})
					known := op >= operation.Barrier && op <= operation.AllToAll && !message || c.Empty()
					if (err == nil) != known {
						t.Fatalf("rank %d of %d, %v: %v", rank, n, c, err)
					}
					if err != nil {
						continue
					}
					if err := p.Check(rank, n, 8); err != nil {
						t.Errorf("rank %d of %d, %v: %v", rank, n, c, err)
					}
					if p.Algorithm == "" || p.Why == "" {
						t.Errorf("rank %d of %d, %v: no reason given", rank, n, c)
					}
				}
			}
		}
	}
}

// TestWhoIsMissing leaves one rank out. Rings and direct algorithms name it;
// others name it, or a rank that has not been heard of yet.
func TestWhoIsMissing(t *testing.T) {
	const n = 6
	for op := range tables {
		for i := range tables[op] {
			a := &tables[op][i]
			for _, top := range topologies(n) {
				tr := trial{op: operation.Op(op), dtype: operation.Int64, count: 60, top: top, piece: 100}
				ps, err := tr.problems()
				if err != nil {
					t.Fatal(err)
				}
				if !ps[0].allows(a) {
					continue
				}
				for missing := range n {
					in, out, _ := data[int64](tr, ps)
					plans := make([]Plan, n)
					for r, p := range ps {
						if r != missing {
							plans[r] = p.plan(a)
						}
					}
					plans[missing] = Plan{NumOut: len(out[missing]), NumIn: len(in[missing])}
					s := simulation[int64]{plans: plans, in: in, out: out, room: true}
					if s.run() == nil {
						continue // nobody needed it
					}
					for r, p := range plans {
						if r == missing || s.received[r] == len(p.Recvs) {
							continue
						}
						v := p.Recvs[s.received[r]]
						if v.Culprit == missing {
							continue
						}
						if a.name == "ring" || a.name == "direct" || a.name == "exchange" {
							t.Errorf("%v %s without rank %d: rank %d names rank %d", operation.Op(op), a.name, missing, r, v.Culprit)
						}
						for _, before := range p.Recvs[:s.received[r]] {
							if before.From == v.Culprit && len(top.Node) == slices.Max(top.Node)+1 {
								t.Errorf("%v %s without rank %d: rank %d names rank %d, of which it has heard", operation.Op(op), a.name, missing, r, v.Culprit)
							}
						}
					}
				}
			}
		}
	}
}

func TestSharesCoverAll(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 64} {
		for _, count := range []int{0, 1, 63, 64, 65, 1000, 12345} {
			at := 0
			for i := range n {
				s := Share(count, n, 16, i)
				if s.Lo != at || s.Hi < s.Lo {
					t.Fatalf("share %d of %d over %d ranks is %v, want it to begin at %d", i, count, n, s, at)
				}
				at = s.Hi
			}
			if at != count {
				t.Fatalf("shares of %d over %d ranks end at %d", count, n, at)
			}
		}
	}
}
