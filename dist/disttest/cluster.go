// SPDX-License-Identifier: Apache-2.0

package disttest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/internal/vnet"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	// keptCalls is how many calls of a rank are remembered.
	keptCalls = 4096
	// firstPID is beyond what a system gives: nobody is taken for a rank.
	firstPID = 5_000_000
	// stride is how long after each other ranks start, so that they do so in
	// an order that is always the same.
	stride = time.Microsecond
)

// cluster is a run.
type cluster struct {
	o     *options
	ctx   context.Context
	net   *vnet.Network
	ranks []*rank

	mu      sync.Mutex
	waiting []Fault // for a call
	faults  []Happened
}

// rank is one of a run.
type rank struct {
	cluster *cluster
	number  int
	host    *vnet.Host
	ctx     context.Context
	kill    context.CancelCauseFunc

	// of what follows the cluster's lock is the guard
	began   bool // main has been called
	over    bool // the rank has ended
	freeze  int  // faults that stop it for good
	why     error
	result  Rank
	counted int
	calls   []Call // a ring, once it is full
}

func newCluster(ctx context.Context, n int, o *options) *cluster {
	c := &cluster{o: o}
	c.ctx = context.WithValue(ctx, clusterKey{}, c)
	c.net = vnet.New(n, o.seed, func(from, to int) vnet.Link { return vnet.Link(o.link(from, to)) })
	for r := range n {
		k := &rank{cluster: c, number: r, host: c.net.Host(r)}
		k.ctx, k.kill = context.WithCancelCause(c.ctx)
		c.ranks = append(c.ranks, k)
	}
	return c
}

// run runs main on all ranks.
func (c *cluster) run(main func(ctx context.Context, g *dist.Group) error) *Result {
	meeting, token := store.NewMemory(), transport.NewToken()
	for _, f := range c.o.faults {
		c.plan(f)
	}
	var all sync.WaitGroup
	for _, r := range c.ranks {
		opts := append([]dist.Option{dist.WithRank(r.number, len(c.ranks)), dist.WithStore(meeting),
			dist.WithNodeID(fmt.Sprintf("disttest/%d", c.o.node(r.number)))}, c.o.init...)
		ctx := native.NewContext(r.ctx, &native.Host{
			Name: fmt.Sprintf("node%d", c.o.node(r.number)), PID: firstPID + r.number, Token: token,
			Listen: r.host.Listen, Dial: r.host.Dial, Called: r.called, Around: r.around,
		})
		all.Go(func() {
			defer r.kill(nil)
			time.Sleep(time.Duration(r.number+1) * stride)
			r.ended(dist.Main(r.main(main), opts...)(ctx))
		})
	}
	all.Wait()
	c.net.Close()
	res := &Result{Seed: c.o.seed, Elapsed: c.net.Now(), Faults: c.faults}
	for _, r := range c.ranks {
		res.Ranks = append(res.Ranks, r.result)
		res.Calls = append(res.Calls, r.calls...)
	}
	sortCalls(res.Calls)
	return res
}

// main makes of the user's main one that keeps book. It ends when the user's
// does, also by a panic or by FailNow.
func (r *rank) main(main func(ctx context.Context, g *dist.Group) error) func(ctx context.Context, g *dist.Group) error {
	c := r.cluster
	return func(ctx context.Context, g *dist.Group) error {
		c.mu.Lock()
		r.began, r.result.Began = true, c.net.Now()
		c.mu.Unlock()
		err := errors.New("disttest: main has ended its goroutine (FailNow?)")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
				}
			}()
			err = main(ctx, g)
		}()
		<-ended
		c.mu.Lock()
		r.result.Ended = c.net.Now()
		c.mu.Unlock()
		return err
	}
}

// ended takes a rank's end.
func (r *rank) ended(err error) {
	c := r.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	r.over = true
	if r.why != nil {
		err = errors.Join(r.why, err)
	}
	r.result.Err = err
	if r.result.Ended == 0 {
		r.result.Ended = c.net.Now()
	}
	c.releaseLater()
}

// releaseLater has release look when all that ends at this instant has ended.
func (c *cluster) releaseLater() {
	c.net.At(0, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.release()
	})
}

// release ends ranks that are stopped for good when nobody else is left.
func (c *cluster) release() {
	for _, r := range c.ranks {
		if !r.over && r.freeze == 0 {
			return
		}
	}
	for _, r := range c.ranks {
		if !r.over {
			c.end(r, ErrStopped)
		}
	}
}

// end kills a rank. The cluster is locked.
func (c *cluster) end(r *rank, why error) {
	if r.over || r.why != nil {
		return
	}
	r.why = why
	r.host.Kill()
	c.net.At(0, func() { r.kill(why) }) // when its calls have ended
}

// around runs an operation of a rank.
func (r *rank) around(number int, group string, call operation.Call, do func() error) error {
	c := r.cluster
	r.begins(number)
	r.host.Pass()
	began := c.net.Now()
	err := do()
	if !r.host.Pass() {
		c.mu.Lock()
		why := r.why
		c.mu.Unlock()
		err = fmt.Errorf("dist: %v of group %q: %w", call, group, why)
	}
	if number > 0 {
		r.record(Call{Rank: r.number, Number: number, Group: group, Op: call.Op.String(), Seq: call.Seq, Began: began, Ended: c.net.Now(), Err: err})
	}
	return err
}

// called counts a call, in the order in which main makes them: that in which
// asynchronous ones begin may be the scheduler's.
func (r *rank) called() int {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	if !r.began {
		return 0
	}
	r.counted++
	return r.counted
}

// begins lets the faults happen that wait for a call.
func (r *rank) begins(number int) {
	c := r.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.waiting[:0]
	var now []Fault
	for _, f := range c.waiting {
		if f.caller == r.number && f.call == number {
			now = append(now, f)
		} else {
			kept = append(kept, f)
		}
	}
	c.waiting = kept
	for _, f := range now {
		c.happen(f)
	}
}

func (r *rank) record(call Call) {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	if len(r.calls) < keptCalls {
		r.calls = append(r.calls, call)
	} else {
		r.calls[call.Number%keptCalls] = call
	}
}

// plan lets a fault happen in its time.
func (c *cluster) plan(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.caller >= 0:
		c.waiting = append(c.waiting, f)
	case f.at <= c.net.Now():
		c.happen(f)
	default:
		c.net.At(f.at, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.happen(f)
		})
	}
}

// happen lets a fault happen. The cluster is locked.
func (c *cluster) happen(f Fault) {
	now := c.net.Now()
	c.faults = append(c.faults, Happened{now, f})
	undo := c.do(f)
	if f.lasting == 0 {
		c.releaseLater()
		return
	}
	c.net.At(now+f.lasting, undo)
}

// do does a fault and returns what undoes it.
func (c *cluster) do(f Fault) (undo func()) {
	switch f.kind {
	case faultKill:
		c.end(c.ranks[f.ranks[0]], ErrKilled)
		return nil
	case faultStop:
		r := c.ranks[f.ranks[0]]
		if f.lasting == 0 {
			r.freeze++
		}
		r.host.Stop()
		return r.host.Continue
	case faultSlow:
		before := map[[2]int]vnet.Link{}
		for _, l := range f.lines(len(c.ranks)) {
			before[l] = c.net.SetLink(l[0], l[1], vnet.Link(f.link))
		}
		return func() {
			for l, link := range before {
				c.net.SetLink(l[0], l[1], link)
			}
		}
	}
	lines := f.lines(len(c.ranks))
	for _, l := range lines {
		c.net.Cut(l[0], l[1])
	}
	return func() {
		for _, l := range lines {
			c.net.Mend(l[0], l[1])
		}
	}
}
