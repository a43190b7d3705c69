// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// exchange is a plan that no operation of this package has: every rank sends a
// block to every other one, without the help of those between. Block i of the
// input goes to rank i, whose output has it in the place of the sender.
func exchange(n, rank, count, piece int) collective.Plan {
	p := collective.Plan{NumOut: n * count, NumIn: n * count, Steps: []collective.Step{
		{Range: collective.Range{Lo: rank * count, Hi: (rank + 1) * count}, From: (n + rank) * count, Num: 1},
	}}
	for i := 1; i < n; i++ {
		to, from := (rank+i)%n, (rank+n-i)%n
		inPieces((n+to)*count, count, piece, func(r collective.Range) {
			p.Sends = append(p.Sends, collective.Send{Range: r, To: to})
		})
		inPieces(from*count, count, piece, func(r collective.Range) {
			p.Recvs = append(p.Recvs, collective.Recv{Range: r, From: from, Culprit: from})
		})
	}
	return p
}

// inPieces calls f for consecutive pieces of count elements from at on.
func inPieces(at, count, piece int, f func(collective.Range)) {
	for lo := at; lo < at+count; lo += piece {
		f(collective.Range{Lo: lo, Hi: min(lo+piece, at+count)})
	}
}

// planner is a rank that runs a plan that it is given.
type planner struct {
	backend.Communicator
	run func(ctx context.Context, c *operation.Call, p *collective.Plan, in, out []byte) error
}

func members(n int) []fault.Member {
	ms := make([]fault.Member, n)
	for r := range ms {
		ms[r].Rank = r
	}
	return ms
}

func goPlanners(_ *testing.T, n int) []planner {
	ranks := make([]planner, n)
	for r, s := range NewGoRanks(Config{Group: "test", Members: members(n), Topology: collective.Apart(n), Timeout: time.Minute}, GoRanksOptions{}) {
		ranks[r] = planner{s, func(ctx context.Context, c *operation.Call, p *collective.Plan, in, out []byte) error {
			e := executor{rank: r, numRanks: n}
			return e.runChecked(ctx, s, c, p, in, out)
		}}
	}
	return ranks
}

// socketPlanners returns ranks that meet at ports, each opened by open.
func socketPlanners(t *testing.T, n int, addr string, open func(cfg Config, fabric *Fabric) (planner, error)) []planner {
	token := transport.NewToken()
	fabrics, book, world := make([]*Fabric, n), make([]Address, n), make([]int, n)
	for r := range n {
		port, err := transport.Listen(addr, token)
		if err != nil {
			t.Fatal(err)
		}
		fabrics[r], book[r], world[r] = NewFabric(token, transport.EncryptControl), Address{Unix: port.Addr(), TCP: port.Addr()}, r
		fabrics[r].Listen(port, true)
		fabrics[r].SetBook(book)
		t.Cleanup(func() { _ = fabrics[r].Close() })
	}
	ranks, errs := make([]planner, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			ranks[r], errs[r] = open(Config{Group: "test", Key: "test", World: world, Rank: r, Members: members(n), Topology: collective.Apart(n), Timeout: time.Minute}, fabrics[r])
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ranks
}

func tcpPlanners(t *testing.T, n int) []planner {
	return socketPlanners(t, n, "127.0.0.1:0", func(cfg Config, fabric *Fabric) (planner, error) {
		r, err := OpenMesh(t.Context(), cfg, fabric, MeshOptions{Node: cfg.World, Local: LocalTCP})
		if err != nil {
			return planner{}, err
		}
		return planner{r, func(ctx context.Context, c *operation.Call, p *collective.Plan, in, out []byte) error {
			return r.exec.runChecked(ctx, r, c, p, in, out)
		}}, nil
	})
}

func shmPlanners(t *testing.T, n int) []planner {
	if !SharedMemory {
		t.Skip("processes cannot share memory on this system")
	}
	return socketPlanners(t, n, "unix:", func(cfg Config, fabric *Fabric) (planner, error) {
		s, err := OpenShm(t.Context(), cfg, fabric)
		if err != nil {
			return planner{}, err
		}
		return planner{s, func(ctx context.Context, c *operation.Call, p *collective.Plan, in, out []byte) error {
			e := executor{rank: cfg.Rank, numRanks: n}
			return e.runChecked(ctx, s, c, p, in, out)
		}}, nil
	})
}

// TestAnyPlanOnAnyLink runs a plan that links know nothing about, between ranks
// that are not neighbours, in small pieces and in more than any link has room for.
func TestAnyPlanOnAnyLink(t *testing.T) {
	for name, open := range map[string]func(*testing.T, int) []planner{"goroutines": goPlanners, "shm": shmPlanners, "tcp": tcpPlanners} {
		for _, n := range []int{2, 3, 5, 8} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				ranks, errs := open(t, n), make([]error, n)
				var wg sync.WaitGroup
				for r := range ranks {
					wg.Go(func() {
						if errs[r] = exchangeAll(t.Context(), ranks[r], r, n); errs[r] != nil {
							ranks[r].Fail(errs[r])
						}
					})
				}
				wg.Wait()
				for _, r := range ranks {
					errs = append(errs, r.Close())
				}
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func exchangeAll(ctx context.Context, b planner, rank, n int) error {
	seq := uint64(0)
	for _, tc := range []struct{ count, piece int }{{1, 1}, {7, 3}, {100, 100}, {400, 7}, {70_001, collective.PieceBytes / 8}} {
		in, out := make([]int64, n*tc.count), make([]int64, n*tc.count)
		for i := range in {
			in[i] = int64(rank*len(in) + i)
		}
		// A barrier before each, as Collective begins: the one before is over.
		seq++
		if err := b.Collective(ctx, operation.Call{Op: operation.Barrier, Seq: seq}, collective.Data{}, collective.Data{}); err != nil {
			return err
		}
		seq++
		c := operation.Call{Op: 100, DType: operation.Int64, Count: tc.count, Seq: seq}
		p := exchange(n, rank, tc.count, tc.piece)
		if err := b.run(ctx, &c, &p, bytesOf(in), bytesOf(out)); err != nil {
			return err
		}
		for i, got := range out {
			from := i / tc.count
			if want := int64(from*len(in) + rank*tc.count + i%tc.count); got != want {
				return fmt.Errorf("rank %d of %d: element %d of rank %d's %d is %d, want %d", rank, n, i%tc.count, from, tc.count, got, want)
			}
		}
	}
	return nil
}

func bytesOf(v []int64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
}

// TestPlansThatCannotRun: a plan that is wrong ends in an error on its own rank
// and reaches no other.
func TestPlansThatCannotRun(t *testing.T) {
	const n = 3
	for name, p := range map[string]collective.Plan{
		"a peer beyond the group": {Sends: []collective.Send{{To: n}}},
		"itself":                  {Recvs: []collective.Recv{{From: 0}}},
		"a piece too large":       {NumOut: collective.PieceBytes, Sends: []collective.Send{{To: 1, Range: collective.Range{Hi: collective.PieceBytes}}}},
		"beyond its memory":       {NumOut: 1, Sends: []collective.Send{{To: 1, Range: collective.Range{Hi: 2}}}},
		"across a border":         {NumOut: 1, Work: 1, Recvs: []collective.Recv{{From: 1, Range: collective.Range{Hi: 2}}}},
		"writes the input":        {NumIn: 1, Recvs: []collective.Recv{{From: 1, Range: collective.Range{Hi: 1}}}},
		"waits for nothing":       {Sends: []collective.Send{{To: 1, After: 1}}},
	} {
		s := NewGoRanks(Config{Group: "test", Members: members(n), Topology: collective.Apart(n), Timeout: time.Minute}, GoRanksOptions{})[0]
		data := make([]byte, 8*collective.PieceBytes)
		if err := (&executor{numRanks: n}).runChecked(t.Context(), s, &operation.Call{Op: 100, DType: operation.Int64}, &p, data, data); err == nil {
			t.Errorf("%s: the plan ran", name)
		}
	}
}

// brokenWay is a link on which nothing can be sent, and nothing comes.
type brokenWay struct {
	failed context.Context
	fails  context.CancelFunc
}

var errWay = errors.New("no way to send")

func (brokenWay) prepare(context.Context, *operation.Call, *collective.Plan) (release func(), fits bool, err error) {
	return func() {}, false, nil
}

func (brokenWay) sendPiece(context.Context, *operation.Call, int, []byte) error { return errWay }

func (l brokenWay) recvPiece(ctx context.Context, _ *operation.Call, _, _ int, _ []byte, _ collective.Reducer) error {
	select {
	case <-l.failed.Done():
		return errors.New("the group has failed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l brokenWay) fail(err error) error {
	l.fails()
	return err
}

// TestSendThatFailsEndsTheCall: a rank that cannot send does not wait for what
// will not come.
func TestSendThatFailsEndsTheCall(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var l brokenWay
	l.failed, l.fails = context.WithCancel(t.Context())
	const count = 10
	p := exchange(2, 0, count, count)
	data := make([]int64, 2*count)
	c := operation.Call{Op: 100, DType: operation.Int64, Count: count, Seq: 1}
	if err := (&executor{numRanks: 2}).runChecked(ctx, l, &c, &p, bytesOf(data), bytesOf(data)); !errors.Is(err, errWay) {
		t.Errorf("the call ended with %v, want %v", err, errWay)
	}
}

// TestPipeWrapsAround sends across the overflow of a pipe's counters to a rank
// that is late.
func TestPipeWrapsAround(t *testing.T) {
	const pieces = 4 * numSlots
	first := ^uint32(0) - 1
	ranks := testRanks(2, GoRanksOptions{})
	c := operation.Call{Op: 100, DType: operation.Int64, Count: 1, Seq: 1}
	var pipes [2]*pipe
	for r, s := range ranks {
		p, err := s.pipes.get(t.Context(), &c, pipeKey{1 - r, r == 0, pipeCollectives})
		if err != nil {
			t.Fatal(err)
		}
		p.count, pipes[r] = first, p
	}
	block := pipes[0].block
	block.sent.value.Store(first)
	block.taken.value.Store(first)
	sent := make(chan error, 1)
	go func() {
		for i := range pieces {
			if err := ranks[0].sendPiece(t.Context(), &c, 1, bytesOf([]int64{int64(i)})); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	// All that there is room for, and no more, is sent before any is received.
	for full := first + numSlots; block.taken.sleepers.Load() == 0 && int32(block.sent.value.Load()-full) <= 0; {
		runtime.Gosched()
	}
	for i := range pieces {
		got := []int64{-1}
		if err := ranks[1].recvPiece(t.Context(), &c, 0, 0, bytesOf(got), nil); err != nil {
			t.Fatal(err)
		}
		if got[0] != int64(i) {
			t.Errorf("piece %d came where %d was due", got[0], i)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// runChecked checks a plan and runs it on a link.
func (e *executor) runChecked(ctx context.Context, l link, c *operation.Call, p *collective.Plan, in, out []byte) error {
	if err := p.Check(e.rank, e.numRanks, c.DType.Size()); err != nil {
		return fmt.Errorf("dist: the plan of %v: %w", c, err)
	}
	return e.runPlan(ctx, l, c, p, &planReduction{}, in, out)
}
