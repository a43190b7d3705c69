// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// meetMethod is how agents agree that no call is under way between them. In each round,
// each agent tells the agent of rank 0 how many calls it has begun and answered so far,
// and gets the sum over all agents when all have come. An agent comes to a round only when
// it has no call under way. So when two rounds have the same sum, no call is under way.
var meetMethod = NewMethod[meetArgs, uint64]("cohort.rpc.meet")

type meetArgs struct {
	Rank, Round int
	Started     uint64
}

const (
	// DefaultShutdownTimeout limits a Shutdown whose context has no deadline.
	DefaultShutdownTimeout = 5 * time.Minute
	// closePatience is how long Close waits for handlers, whose contexts have ended.
	closePatience = time.Second
	// lingerTime is how long the agent of rank 0 waits until the others have got its last
	// answer.
	lingerTime = 5 * time.Second
	// askTime limits questions to agents about a shutdown.
	askTime = 10 * time.Second
	// lookTime is how often it asks the agents that have not come whether they are there.
	lookTime = time.Second
)

// rounds are the rounds of a shutdown, at the agent of rank 0.
type rounds struct {
	mu  sync.Mutex
	all map[int]*round
	err error // why there will be no more of them
}

type round struct {
	came    map[int]comer
	sum     uint64
	f       *Future[uint64]
	resolve func(uint64, error)
}

// comer is what an agent said when it came to a round.
type comer struct {
	life    uint64
	started uint64
}

func (r *rounds) init() { r.all = map[int]*round{} }

func (r *rounds) get(n int) *round {
	if r.all[n] == nil {
		f, resolve := NewFuture[uint64]()
		r.all[n] = &round{came: map[int]comer{}, f: f, resolve: resolve}
	}
	return r.all[n]
}

// meet answers meetMethod.
func (a *Agent) meet(ctx context.Context, in meetArgs) *Future[uint64] {
	r := &a.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	// Each agent comes under its own rank, once a round, and after all agents have been at
	// the round before. A process that was started again comes in place of the one before.
	before, from := r.all[in.Round-1], callerServer(ctx)
	var last comer
	came := false
	if this := r.all[in.Round]; this != nil {
		last, came = this.came[in.Rank]
	}
	if from.peer.rank != in.Rank || in.Rank < 0 || in.Round < 0 || in.Round > 0 && (before == nil || len(before.came) < a.Size()) ||
		came && last.life == from.Life {
		f, resolve := NewFuture[uint64]()
		resolve(0, fmt.Errorf("%s cannot come to round %d as agent %d of %d", from.peer.name, in.Round, in.Rank, a.Size()))
		return f
	}
	this := r.get(in.Round)
	if r.err != nil {
		this.resolve(0, r.err)
		return this.f
	}
	this.came[in.Rank] = comer{from.Life, in.Started}
	this.sum += in.Started - last.started
	if len(this.came) == a.Size() {
		this.resolve(this.sum, nil)
	}
	return this.f
}

// missing are the agents that have not come to the last round.
func (a *Agent) missing() []*Peer {
	r := &a.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.all[len(r.all)-1]
	if last == nil {
		return nil
	}
	return slices.DeleteFunc(a.Peers(), func(p *Peer) bool {
		_, came := last.came[p.rank]
		return came
	})
}

// lookForMissing asks the agents that have not come, until ctx is done, whether they are
// there. An agent that has died will never come: the shutdown ends, and the error names
// it.
func (a *Agent) lookForMissing(ctx context.Context) {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, p := range a.missing() {
			if p == a.self || !p.link.Known() { // or it may yet be started
				continue
			}
			limit, cancel := context.WithTimeout(ctx, askTime)
			_, err := p.Describe(limit)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				continue // which says nothing about it
			}
			if k := KindOf(err); ctx.Err() == nil && (k == KindUnreachable || k == KindClosed) {
				a.rounds.fail(fmt.Errorf("%v has gone without a Shutdown: %w", p, err))
			}
		}
	}
}

// fail ends all rounds.
func (r *rounds) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	for _, this := range r.all {
		this.resolve(0, err)
	}
}

// Shutdown leaves the job in good order: it waits until all agents have called Shutdown
// and no call is under way between any of them, and then closes the agent. Until then the
// agent goes on answering calls. After five seconds it writes to standard error what it
// waits for. It also lists there the references that have not been released, here and
// elsewhere.
//
// If not all agents come in time, or one has died, the agent is closed all the same, and
// the error names the agents that are missing.
func (a *Agent) Shutdown(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultShutdownTimeout)
		defer cancel()
	}
	err := a.settle(ctx)
	if err != nil {
		a.partFailed()
	}
	if a.refs != nil {
		for _, leak := range a.refs.leaks() {
			fmt.Fprintf(os.Stderr, "cohort: rpc agent %s: %s\n", a.name, leak)
		}
	}
	if err == nil {
		a.linger(ctx)
	}
	if cerr := a.Close(); err == nil {
		err = cerr
	}
	return err
}

// settle meets the other agents until nothing is on its way.
func (a *Agent) settle(ctx context.Context) error {
	if a.ctx.Err() != nil {
		return nil // it has been closed
	}
	if a.rank == 0 && a.Size() > 1 {
		limit, cancel := context.WithCancel(ctx)
		defer cancel()
		a.end.Go(func() { a.lookForMissing(limit) })
	}
	over, stop := context.WithCancel(ctx)
	defer stop()
	a.end.Go(func() { a.tellWaiting(over) })
	lead := a.PeerRank(0)
	last := ^uint64(0)
	for n := 0; ; n++ {
		if err := a.quiet(ctx); err != nil {
			return fmt.Errorf("rpc: shutdown of %s: calls of this agent are still under way (%s): %w", a.name, a.openCalls(), err)
		}
		if n == 1 { // all have come: nobody looks for this one any more
			a.part()
			if err := a.end.Leave(ctx); err != nil {
				return fmt.Errorf("rpc: shutdown of %s: %w", a.name, err)
			}
		}
		_, out := a.outstanding.count()
		_, in := a.handling.count()
		sum, err := meetMethod.Call(ctx, lead, meetArgs{a.rank, n, out + in})
		if err != nil {
			if late := a.missing(); a.rank == 0 && len(late) > 0 && (ctx.Err() != nil || KindOf(err) == KindTimeout) {
				var names []string
				for _, p := range late {
					names = append(names, p.String())
				}
				return fmt.Errorf("rpc: shutdown of %s: %s did not come: %w", a.name, strings.Join(names, ", "), err)
			}
			return fmt.Errorf("rpc: shutdown of %s: %w", a.name, err)
		}
		if sum == last {
			return nil
		}
		last = sum
	}
}

// quiet waits until this agent neither waits for an answer nor owes one.
func (a *Agent) quiet(ctx context.Context) error {
	for {
		if err := a.outstanding.wait(ctx); err != nil {
			return err
		}
		if err := a.handling.wait(ctx); err != nil {
			return err
		}
		if n, _ := a.outstanding.count(); n == 0 {
			return nil
		}
	}
}

// linger waits, on the agent of rank 0, until the others have closed their
// connections: they have their last answers then.
func (a *Agent) linger(ctx context.Context) {
	if a.rank != 0 || a.Size() == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lingerTime)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		n := 0
		for _, s := range a.end.Servers() {
			if p := s.(*server).peer; p != a.self && p.err == nil {
				n++
			}
		}
		if n == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// Close closes the agent at once. Calls under way fail, here and at the peers, and the
// contexts of handlers end. Close waits a moment for the handlers to return. A second
// Close does nothing.
func (a *Agent) Close() error {
	return a.shut(errClosed)
}

func (a *Agent) shut(why error) error {
	if a.closing.Swap(true) {
		return nil
	}
	a.end.Stop()
	a.outstanding.refuse()
	a.cancel(why)
	if a.detach != nil {
		a.detach()
	}
	if a.refs != nil {
		a.refs.close()
	}
	err := a.end.Close(why)
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if herr := a.handling.wait(ctx); herr != nil && !errors.Is(herr, context.DeadlineExceeded) {
		err = errors.Join(err, herr)
	}
	return err
}

// missingMethod asks the agent of rank 0 which agents have not called Shutdown.
var missingMethod = NewMethod[struct{}, []string]("cohort.rpc.missing")

// waitingTime is after how long a Shutdown says what it waits for.
const waitingTime = 5 * time.Second

// tellWaiting writes to standard error what a shutdown waits for, if that takes longer
// than waitingTime.
func (a *Agent) tellWaiting(ctx context.Context) {
	timer := time.NewTimer(waitingTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	what := a.waitsFor(ctx)
	if ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "cohort: rpc agent %s: shutdown has been waiting for %v: %s\n", a.name, waitingTime, what)
	}
}

const mostNamed = 10

// openCalls names the calls that hold a shutdown up here, empty if there are none.
func (a *Agent) openCalls() string {
	var calls []string
	for _, c := range a.InFlight() {
		switch {
		case reserved(c.Method):
		case c.GivenUp:
			calls = append(calls, fmt.Sprintf("%s, called by %s, which has given it up, and not ended for %v", c.Method, c.Peer, c.Since.Round(time.Millisecond)))
		case c.Served:
			calls = append(calls, fmt.Sprintf("%s, called by %s", c.Method, c.Peer))
		default:
			calls = append(calls, fmt.Sprintf("%s at %s", c.Method, c.Peer))
		}
	}
	return some(calls, mostNamed)
}

func (a *Agent) waitsFor(ctx context.Context) string {
	if calls := a.openCalls(); calls != "" {
		return "calls are under way: " + calls
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	lead := a.PeerRank(0)
	names, err := missingMethod.Call(ctx, lead, struct{}{})
	switch {
	case err != nil:
		return fmt.Sprintf("%v, which knows the agents that have not called it, does not answer: %v", lead, err)
	case len(names) == 0:
		return "all have called it, and not all of their calls have ended"
	}
	return "these have not called it, or have calls under way: " + some(names, mostNamed)
}

// some lists the first of names.
func some(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], "; "), len(names)-most)
	}
	return strings.Join(names, "; ")
}

// onMissing answers missingMethod.
func (a *Agent) onMissing() (names []string) {
	for _, p := range a.missing() {
		names = append(names, p.String())
	}
	return names
}
