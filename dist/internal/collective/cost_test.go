// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"container/heap"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
)

// timing plays plans in time: a rank sends one message at a time and receives
// one at a time, both at once; ranks of a node share its link to the others,
// one direction each; a message is received as it comes.
type timing struct {
	plans  []Plan
	layout *layout
	costs  Costs
	size   int // bytes of an element

	ranks    []timedRank
	out, in  []int64 // by node: when its link is free
	ways     map[way][]flight
	ready    sends
	linkOut  []int64 // by node: bytes that left it
	linkIn   []int64
	sent     []int64 // by rank: bytes
	messages []int   // by rank: how many it sent
}

type timedRank struct {
	sent, received, stepped int
	sendFree, recvFree      int64
	done                    []int64 // by receives completed: when
	queued                  bool
}

// flight is when the first and the last byte of a message come.
type flight struct{ first, last, bytes int64 }

type readySend struct {
	at   int64
	rank int
}

type sends []readySend

func (s sends) Len() int { return len(s) }
func (s sends) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].rank < s[j].rank
}
func (s sends) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *sends) Push(x any)   { *s = append(*s, x.(readySend)) }
func (s *sends) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// run returns when the last rank has ended, in picoseconds.
func (s *timing) run() (int64, error) {
	n, nodes := len(s.plans), len(s.layout.nodes)
	s.ranks, s.ways = make([]timedRank, n), map[way][]flight{}
	s.out, s.in, s.linkOut, s.linkIn = make([]int64, nodes), make([]int64, nodes), make([]int64, nodes), make([]int64, nodes)
	s.sent, s.messages = make([]int64, n), make([]int, n)
	for r := range s.ranks {
		s.ranks[r].done = []int64{s.stepsAfter(r, 0, 0)}
		s.queue(r)
	}
	for s.ready.Len() > 0 {
		e := heap.Pop(&s.ready).(readySend)
		s.ranks[e.rank].queued = false
		s.send(e.rank, e.at)
	}
	end := int64(0)
	for r := range s.ranks {
		k := &s.ranks[r]
		if k.sent < len(s.plans[r].Sends) || k.received < len(s.plans[r].Recvs) {
			return 0, fmt.Errorf("rank %d stands still after %d sends and %d receives", r, k.sent, k.received)
		}
		end = max(end, k.sendFree, k.done[k.received])
	}
	return end, nil
}

// queue puts a rank's next send among those that are ready, if it is.
func (s *timing) queue(r int) {
	k, p := &s.ranks[r], &s.plans[r]
	if k.queued || k.sent == len(p.Sends) || p.Sends[k.sent].After > k.received {
		return
	}
	k.queued = true
	heap.Push(&s.ready, readySend{max(k.sendFree, k.done[p.Sends[k.sent].After]), r})
}

func (s *timing) link(from, to int) (l LinkCost, far bool) {
	if s.layout.node[from] == s.layout.node[to] {
		return s.costs.Local, false
	}
	return s.costs.Net, true
}

func (s *timing) send(r int, at int64) {
	k, v := &s.ranks[r], &s.plans[r].Sends[s.ranks[r].sent]
	l, far := s.link(r, v.To)
	bytes := int64(v.Len() * s.size)
	start := at + l.Overhead
	from, to := s.layout.node[r], s.layout.node[v.To]
	if far {
		start = max(start, s.out[from])
		s.out[from] = start + bytes*l.PerByte
	}
	f := flight{start + l.Latency, start + bytes*l.PerByte + l.Latency, bytes}
	k.sendFree = start + bytes*l.PerByte
	if far {
		f.first = max(f.first, s.in[to])
		f.last = max(f.last, f.first+bytes*l.PerByte)
		s.in[to] = f.last
		s.linkOut[from] += bytes
		s.linkIn[to] += bytes
	}
	s.sent[r] += bytes
	s.messages[r]++
	k.sent++
	w := way{r, v.To}
	s.ways[w] = append(s.ways[w], f)
	s.queue(r)
	s.receive(v.To)
}

func (s *timing) receive(r int) {
	k, p := &s.ranks[r], &s.plans[r]
	for k.received < len(p.Recvs) {
		v := &p.Recvs[k.received]
		w := way{v.From, r}
		if len(s.ways[w]) == 0 {
			return
		}
		f := s.ways[w][0]
		s.ways[w] = s.ways[w][1:]
		l, _ := s.link(v.From, r)
		end := max(f.last, max(f.first, k.recvFree)+f.bytes*l.PerByte) + l.Overhead
		if v.Reduce {
			end += f.bytes * s.costs.Reduce
		}
		k.received++
		k.recvFree = s.stepsAfter(r, k.received, end)
		k.done = append(k.done, k.recvFree)
		s.queue(r)
	}
}

func (s *timing) stepsAfter(r, received int, at int64) int64 {
	k, p := &s.ranks[r], &s.plans[r]
	for ; k.stepped < len(p.Steps) && p.Steps[k.stepped].After <= received; k.stepped++ {
		v := &p.Steps[k.stepped]
		bytes := int64(v.Len() * s.size)
		if v.Num == 1 {
			at += bytes * s.costs.Copy
		} else {
			at += bytes * int64(v.Num-1) * s.costs.Reduce
		}
	}
	return at
}

// perNode is n ranks, k on each node.
func perNode(n, k int) Topology {
	t := OneNode(n)
	for r := range t.Node {
		t.Node[r] = r / k
	}
	return t
}

// timed plays a call by an algorithm in time.
func timed(tr trial, a *algorithm) (*timing, int64, error) {
	ps, err := tr.problems()
	if err != nil {
		return nil, 0, err
	}
	s := &timing{layout: ps[0].layout, costs: DefaultCosts(), size: max(1, tr.dtype.Size()), plans: make([]Plan, len(ps))}
	for r, p := range ps {
		s.plans[r] = p.plan(a)
	}
	end, err := s.run()
	return s, end, err
}

func algorithmOf(t *testing.T, op operation.Op, name string) *algorithm {
	for i := range tables[op] {
		if tables[op][i].name == name {
			return &tables[op][i]
		}
	}
	t.Fatalf("%v has no algorithm %q", op, name)
	return nil
}

// TestTraffic: bandwidth-optimal algorithms send what they must and no more, and
// two-level ones send each byte over a node's link once.
func TestTraffic(t *testing.T) {
	const count = 3 << 20 // float32
	const bytes = 4 * count
	near := func(got, want int64) bool { return got > want*99/100 && got < want*101/100 }
	for _, n := range []int{2, 3, 4, 8} {
		for _, name := range []string{"ring", "direct", "recursive halving and doubling"} {
			if name[:3] == "rec" && !powerOfTwo(n) {
				continue
			}
			s, _, err := timed(trial{op: operation.AllReduce, dtype: operation.Float32, count: count, top: Apart(n)}, algorithmOf(t, operation.AllReduce, name))
			if err != nil {
				t.Fatal(err)
			}
			for r, sent := range s.sent {
				if want := int64(2 * (n - 1) * bytes / n); !near(sent, want) {
					t.Errorf("%s over %d ranks: rank %d sent %d bytes, want %d", name, n, r, sent, want)
				}
			}
		}
	}
	for _, tc := range []struct {
		op        operation.Op
		name      string
		top       Topology
		count     int
		out       int64 // bytes over the link of a node, each direction
		anyOfThem bool  // only of the nodes together: roots differ
	}{
		{op: operation.AllReduce, name: "two-level direct", top: perNode(4, 2), count: count, out: bytes},
		{op: operation.AllReduce, name: "two-level ring", top: perNode(8, 4), count: count, out: bytes},
		{op: operation.AllReduce, name: "two-level ring", top: perNode(12, 3), count: count, out: 2 * 3 * bytes / 4},
		{op: operation.AllReduce, name: "two-level by leaders, direct", top: perNode(5, 3), count: count, out: bytes},
		{op: operation.AllGather, name: "two-level", top: perNode(4, 2), count: count / 4, out: bytes / 2},
		{op: operation.AllGather, name: "two-level", top: perNode(12, 3), count: count / 12, out: 3 * bytes / 4},
		{op: operation.ReduceScatter, name: "two-level", top: perNode(4, 2), count: count / 4, out: bytes / 2},
		{op: operation.ReduceScatter, name: "two-level", top: perNode(12, 3), count: count / 12, out: 3 * bytes / 4},
		{op: operation.AllToAll, name: "two-level", top: perNode(4, 2), count: count / 4, out: bytes},
		{op: operation.Broadcast, name: "chain", top: perNode(9, 3), count: count, out: bytes, anyOfThem: true},
		{op: operation.Broadcast, name: "two-level binomial tree", top: perNode(6, 3), count: count, out: bytes, anyOfThem: true},
		{op: operation.Reduce, name: "chain", top: perNode(9, 3), count: count, out: bytes, anyOfThem: true},
		{op: operation.Reduce, name: "two-level binomial tree", top: perNode(6, 3), count: count, out: bytes, anyOfThem: true},
	} {
		tr := trial{op: tc.op, dtype: operation.Float32, count: tc.count, top: tc.top}
		s, _, err := timed(tr, algorithmOf(t, tc.op, tc.name))
		if err != nil {
			t.Fatalf("%v %s: %v", tc.op, tc.name, err)
		}
		for node := range s.linkOut {
			if tc.anyOfThem && s.linkOut[node] == 0 {
				continue
			}
			if !near(s.linkOut[node], tc.out) {
				t.Errorf("%v %s over nodes %v: %d bytes left node %d, want %d", tc.op, tc.name, tc.top.Node, s.linkOut[node], node, tc.out)
			}
		}
		if total, want := sumOf(s.linkIn), sumOf(s.linkOut); total != want {
			t.Errorf("%d bytes came, %d went", total, want)
		}
	}
}

func sumOf(v []int64) (total int64) {
	for _, x := range v {
		total += x
	}
	return total
}

// TestLogarithmicSteps: algorithms for small data take log n steps: their time grows as the
// latency does.
func TestLogarithmicSteps(t *testing.T) {
	step := DefaultCosts().Net.step(8)
	for _, tc := range []struct {
		op   operation.Op
		name string
		n    int
		want int64 // steps
	}{
		{operation.Barrier, "dissemination", 4096, 12},
		{operation.Barrier, "dissemination", 1000, 10},
		{operation.AllReduce, "recursive doubling", 4096, 12},
		{operation.AllReduce, "recursive doubling", 1000, 11},
		{operation.AllReduce, "recursive halving and doubling", 1024, 20},
		{operation.Broadcast, "binomial tree", 4096, 12},
		{operation.Reduce, "binomial tree", 1000, 10},
		{operation.AllGather, "Bruck", 64, 6},
		{operation.AllToAll, "Bruck", 64, 6},
		{operation.Gather, "binomial tree", 64, 6},
		{operation.Scatter, "binomial tree", 64, 6},
		{operation.ReduceScatter, "recursive halving", 64, 6},
		{operation.AllReduce, "exchange", 4, 1},
	} {
		_, end, err := timed(trial{op: tc.op, dtype: operation.Int64, count: 1, top: Apart(tc.n)}, algorithmOf(t, tc.op, tc.name))
		if err != nil {
			t.Fatal(err)
		}
		// A broadcast's root sends to all its children in turn.
		if lo, hi := step*tc.want*6/10, step*tc.want*14/10; end < lo || end > hi {
			t.Errorf("%v by %s over %d ranks takes %s, want %d steps of %s", tc.op, tc.name, tc.n, duration(end), tc.want, duration(step))
		}
	}
}

// How much longer than the quickest algorithm, as played in time, the chosen one
// may take: with equally many ranks on each node, and without.
const (
	rough         = 1.6
	roughLopsided = 1.9
)

// TestChosenIsQuick compares what is chosen with all others, as played in time.
func TestChosenIsQuick(t *testing.T) {
	var jobs []trial
	for op := range tables {
		if tables[op] == nil || operation.Op(op) == operation.Barrier {
			continue
		}
		for _, n := range []int{2, 3, 4, 5, 6, 8, 12, 16, 24, 48, 64} {
			for _, bytes := range []int{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
				if bytes > 1<<20 && n > 8 {
					continue // many pieces
				}
				if bytes > 64<<10 && n > 24 {
					continue
				}
				tops := []Topology{perNode(n, 1), perNode(n, 2), perNode(n, 4), topologies(n)[4]}
				for i, top := range tops {
					if i > 0 && !layoutFor(top).levels() {
						continue
					}
					count := bytes / 4
					switch operation.Op(op) {
					case operation.AllGather, operation.ReduceScatter, operation.Gather, operation.Scatter, operation.AllToAll:
						count = max(1, count/n)
					}
					jobs = append(jobs, trial{op: operation.Op(op), dtype: operation.Float32, count: count, top: top})
				}
			}
		}
	}
	var mu sync.Mutex
	worst, where := 1.0, ""
	inParallel(len(jobs), func(i int) {
		tr := jobs[i]
		ps, err := tr.problems()
		if err != nil {
			t.Error(err)
			return
		}
		chosen, _ := ps[0].choose()
		var took, best int64
		var name string
		for i := range tables[tr.op] {
			a := &tables[tr.op][i]
			if !ps[0].allows(a) {
				continue
			}
			_, end, err := timed(tr, a)
			if err != nil {
				t.Errorf("%v: %s: %v", tr, a.name, err)
				return
			}
			if a == chosen {
				took = end
			}
			if name == "" || end < best {
				best, name = end, a.name
			}
		}
		mu.Lock()
		defer mu.Unlock()
		ratio := float64(took) / float64(max(best, 1))
		text := fmt.Sprintf("%v of %d over nodes %v: %s takes %s, %s %s", tr.op, tr.count, tr.top.Node, chosen.name, duration(took), name, duration(best))
		if ratio > worst {
			worst, where = ratio, text
		}
		limit := rough
		if ps[0].layout.levels() && !ps[0].layout.even() {
			limit = roughLopsided
		}
		if ratio > limit {
			t.Errorf("%.2f times: %s", ratio, text)
		}
	})
	t.Logf("at worst %.2f times: %s", worst, where)
}

var update = flag.Bool("update", false, "write testdata/chosen.txt anew")

// TestChosen compares what is chosen with testdata/chosen.txt, so that a change
// of the costs shows what it changes.
func TestChosen(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What is chosen, by operation, ranks on each node, and bytes (of the whole vector).\n" +
		"# Written by go test -run TestChosen ./dist/internal/collective -update\n")
	tops := []struct {
		name string
		of   func(n int) Topology
	}{
		{"1", func(n int) Topology { return perNode(n, 1) }},
		{"2", func(n int) Topology { return perNode(n, 2) }},
		{"8", func(n int) Topology { return perNode(n, 8) }},
		{"7,9", func(n int) Topology {
			t := perNode(n, 8)
			for r := 7; r < n; r += 16 {
				t.Node[r] = min(r/8+1, (n-1)/8)
			}
			return t
		}},
	}
	for op := range tables {
		if tables[op] == nil {
			continue
		}
		for _, top := range tops {
			for _, n := range []int{2, 4, 16, 64, 512, 4096} {
				if top.name != "1" && n < 16 && (top.name != "2" || n < 4) {
					continue
				}
				l := layoutFor(top.of(n))
				var names []string
				for _, bytes := range []int{4, 4 << 10, 64 << 10, 1 << 20, 64 << 20} {
					count := bytes / 4
					switch operation.Op(op) {
					case operation.AllGather, operation.ReduceScatter, operation.Gather, operation.Scatter, operation.AllToAll:
						count = (count + n - 1) / n
					}
					c := trial{op: operation.Op(op), dtype: operation.Float32, count: count, top: Topology{Node: make([]int, n)}}.call(0)
					p, err := problemFor(c, n-1, l, Options{})
					if err != nil {
						t.Fatal(err)
					}
					a, _ := p.choose()
					if len(names) == 0 || !strings.HasSuffix(names[len(names)-1], ": "+a.name) {
						names = append(names, fmt.Sprintf("%d: %s", bytes, a.name))
					}
					if p.idle {
						names = []string{a.name}
					}
				}
				fmt.Fprintf(&b, "%v, %s on a node, %d ranks: %s\n", operation.Op(op), top.name, n, strings.Join(slices.Compact(names), "; "))
			}
		}
	}
	path := filepath.Join("testdata", "chosen.txt")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, old := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(old)) {
		switch {
		case i >= len(got):
			t.Errorf("no longer there: %s", old[i])
		case i >= len(old):
			t.Errorf("new: %s", got[i])
		case got[i] != old[i]:
			t.Errorf("now: %s\nwas: %s", got[i], old[i])
		}
	}
}
