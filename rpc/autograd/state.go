// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// state is a context's part on one process: the forward passes that ran here, what
// was sent from here, and the gradients of parameters that live here.
type state struct {
	e     *engine
	id    uint64
	life  uint64 // of the process that made it
	grads gradients

	mu      sync.Mutex
	passes  []*pass
	sends   map[uint64]*sent // by message id
	came    map[uint64]*pass // what was received, by message id
	peers   map[int]uint64   // who takes part beside this process, as far as it knows, and in which life
	running map[*pass]bool   // calls that have not been answered
	quiet   chan struct{}    // closed when the last of them was
	walks   uint64           // the backward pass that runs or was the last one
	asked   uint64           // the last one that this process was asked for
	walk    *walk            // the one that runs, or gets its first gradients
	heard   time.Time
	done    chan struct{}           // closed when the context ends
	ended   error                   // why it is over
	broken  error                   // why no backward pass can end well
	asking  context.CancelCauseFunc // ends the questions before a backward pass, see everybody
}

// pass is one forward pass: that of a call's handler, or one of those that the
// context's maker began. Its tape belongs to the goroutine that computes.
type pass struct {
	s        *state
	ctx      context.Context
	carrier  *nn.Ctx // made when it is first needed
	parts    []*part // of the parameters read
	method   string  // of the call, "" if it is the maker's own
	from     int     // who called
	numSent  int     // tensors sent whose arrival nobody has confirmed yet
	ownGrads bool    // gradients go to the parameters themselves
	// crossings are to be set when a backward pass has consumed what crossed.
	crossings []*bool
	replied   []*sent // what the answer of the call carries
	abandoned bool    // see engine.abandon
}

// sent is a tensor that went to another process, whose gradient will come back.
type sent struct {
	id    uint64
	to    int
	what  string // "argument 0 of math.Add"
	shape []int
	dtype tensor.DType
	by    *pass
	over  bool // a backward pass has consumed it
}

// got is a tensor that came from another process.
type got struct {
	s    *state
	id   uint64
	from int
	what string
	// late is the last backward pass that had begun at either side when it was sent
	// and came, 0 for none: its loss does not depend on it, and it is answered at once.
	late uint64
	over bool // a backward pass has consumed it
}

type passKey struct{}

// passOf returns the pass that ctx carries, nil for none. A carrier of an evaluation
// within a pass has none.
func passOf(ctx context.Context) *pass {
	p, _ := ctx.Value(passKey{}).(*pass)
	if p != nil {
		if c := nn.CarrierOf(ctx); c != nil && !c.Training() {
			return nil
		}
	}
	return p
}

func newState(e *engine, id, life uint64) *state {
	return &state{
		e: e, id: id, life: life, sends: make(map[uint64]*sent), came: make(map[uint64]*pass), peers: make(map[int]uint64), running: make(map[*pass]bool),
		heard: time.Now(), done: make(chan struct{}),
	}
}

// fail makes err one of this context and process.
func (s *state) fail(op string, err error) error { return s.failAt(op, s.e.rank, err) }

func (s *state) failAt(op string, rank int, err error) error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return err
	}
	return &Error{Op: op, Context: s.id, Worker: s.e.wire.name(rank), Rank: rank, Err: err}
}

// newPass begins a forward pass. ctx is what its carrier is made of.
func (s *state) newPass(ctx context.Context, method string, from int) (*pass, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	p := &pass{s: s, method: method, from: from}
	p.ctx = context.WithValue(ctx, passKey{}, p)
	s.passes = append(s.passes, p)
	s.heard = time.Now()
	return p, nil
}

// open returns the carrier of the pass.
func (p *pass) open(opts ...nn.CtxOption) *nn.Ctx {
	if p.carrier == nil {
		if !p.ownGrads {
			opts = append([]nn.CtxOption{nn.WithLeaves(p.leaf)}, opts...)
		}
		c := nn.Training(p.ctx, opts...)
		p.s.mu.Lock()
		p.carrier = c
		p.s.mu.Unlock()
		return c
	}
	for _, o := range opts {
		o(p.carrier)
	}
	return p.carrier
}

// leaf is where the gradient of a parameter that the pass reads goes.
func (p *pass) leaf(param *nn.Parameter) tensor.Leaf {
	l := p.s.grads.leaf(param)
	p.parts = append(p.parts, l)
	return l
}

// known returns who takes part beside this process.
func (s *state) known() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knownLocked()
}

func (s *state) knownLocked() []int {
	out := make([]int, 0, len(s.peers))
	for r := range s.peers {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// members is known, with the lives.
func (s *state) members() []member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.membersLocked()
}

func (s *state) membersLocked() []member {
	out := make([]member, 0, len(s.peers))
	for _, r := range s.knownLocked() {
		out = append(out, member{r, s.peers[r]})
	}
	return out
}

// learn adds processes that take part.
func (s *state) learn(who ...member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.learnLocked(who...)
}

func (s *state) learnLocked(who ...member) {
	for _, m := range who {
		if m.Rank == s.e.rank || m.Rank < 0 || m.Rank >= s.e.size {
			continue
		}
		if life, known := s.peers[m.Rank]; known && life != m.Life && s.broken == nil {
			s.breakOff(m.Rank, errors.New("it was started again in the middle of the context"))
		}
		s.peers[m.Rank] = m.Life
	}
}

func (s *state) touch(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = now
}

// quietSince returns for how long nothing has been heard of the context.
func (s *state) quietSince(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.walk != nil && s.walk.begun || len(s.running) > 0 {
		return 0
	}
	return now.Sub(s.heard)
}

// lose hears that the connection with a process has ended.
func (s *state) lose(who member, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if life, known := s.peers[who.Rank]; known && life == who.Life && s.broken == nil && s.ended == nil {
		s.breakOff(who.Rank, fmt.Errorf("it was lost: %w", err))
	}
}

// breakOff says, with the lock held, why no backward pass can end well.
func (s *state) breakOff(rank int, err error) {
	s.broken = s.failAt("backward", rank, err)
	if s.walk != nil && s.walk.begun {
		s.walk.cancel(s.broken)
	}
	if s.asking != nil {
		s.asking(s.broken)
	}
}

// end is the end of the context here. It frees what the tapes hold, ends a
// backward pass, and returns who else took part. mine says that it is the goroutine
// of who began passes here that ends it: else one of them may be computing.
func (s *state) end(cause error, mine bool) []int {
	s.mu.Lock()
	s.ended = cause
	close(s.done)
	walk := s.walk
	if walk != nil && walk.begun {
		walk.cancel(cause)
	}
	peers := s.knownLocked()
	s.mu.Unlock()
	if walk != nil && walk.begun {
		<-walk.over // it reads the tapes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.passes {
		// The tape of a call that still runs is in use, and what was sent may still be
		// on its way out: those are left to the collector.
		if p.carrier != nil && !s.running[p] && p.numSent == 0 && (mine || p.method != "") {
			p.carrier.Close()
		}
	}
	s.passes, s.sends, s.came = nil, nil, nil
	return peers
}

// send records that tensors of a message go to another process, as far as
// gradients flow through them.
func (p *pass) send(to int, what string, tensors []*tensor.Tensor, reply bool) (first uint64, crossed []int, err error) {
	for i, t := range tensors {
		if t.NeedsGrad() {
			crossed = append(crossed, i)
		}
	}
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return 0, nil, s.ended
	}
	if len(crossed) == 0 {
		return 0, nil, nil
	}
	if len(crossed) > maxCrossed {
		return 0, nil, fmt.Errorf("%d tensors with gradients are more than the %d of one message", len(crossed), maxCrossed)
	}
	first = s.e.messages(len(crossed))
	for k, i := range crossed {
		t := tensors[i]
		owner := p
		if p.carrier == nil || t.Tape() != p.carrier.Tape() {
			if owner = s.ownerOf(t.Tape()); owner == nil {
				return 0, nil, fmt.Errorf("%s %d was computed outside of the context: its history cannot be differentiated here. "+
					"Compute under the carrier that Pass gave, or send what Detach returns", what, i)
			}
		}
		m := &sent{id: first + uint64(k), to: to, what: fmt.Sprintf("%s %d", what, i), shape: t.Shape(), dtype: t.DType(), by: owner}
		if owner == p {
			// A node of its own keeps the place in the order of what was computed.
			t = tensor.Record("send", t.Detach(), []*tensor.Tensor{t}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return []*tensor.Tensor{g}, nil
			})
		}
		t.AtGrad(func(ctx context.Context, g *tensor.Tensor) (*tensor.Tensor, error) { return s.await(ctx, m, g) })
		s.sends[m.id] = m
		if reply {
			p.replied = append(p.replied, m)
		}
		owner.numSent++
		owner.crossings = append(owner.crossings, &m.over)
	}
	return first, crossed, nil
}

// unsend takes back what an answer carried that could not be sent.
func (p *pass) unsend() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, m := range p.replied {
		m.over = true
		m.by.numSent--
		delete(p.s.sends, m.id)
	}
	p.replied = nil
}

// ownerOf returns the pass of this context whose tape tp is.
func (s *state) ownerOf(tp *tensor.Tape) *pass {
	for _, p := range s.passes {
		if p.carrier != nil && p.carrier.Tape() == tp {
			return p
		}
	}
	return nil
}

// receive brings tensors that came from another process to the tape, where they
// are leaves that answer.
func (p *pass) receive(from int, what string, h header, tensors []*tensor.Tensor) error {
	if len(h.crossed) == 0 {
		return nil
	}
	if rankOf(h.first) != from || rankOf(h.first+uint64(len(h.crossed))) != from {
		return fmt.Errorf("the ids of its tensors, from %s, are not of rank %d that sent them", contextName(h.first), from)
	}
	for _, i := range h.crossed {
		if !tensors[i].DType().IsFloat() {
			return fmt.Errorf("%s %d is %v, which has no gradient", what, i, tensors[i].DType())
		}
	}
	c := p.open()
	s := p.s
	s.mu.Lock()
	late := max(h.walk, s.walks)
	s.mu.Unlock()
	for k, i := range h.crossed {
		m := &got{s: s, id: h.first + uint64(k), from: from, what: fmt.Sprintf("%s %d", what, i), late: late}
		in := c.Tape().Leaf(tensors[i])
		in.AtGrad(m.answer)
		s.mu.Lock()
		if s.ended != nil { // any process may end a context, at any time
			defer s.mu.Unlock()
			return s.ended
		}
		p.crossings = append(p.crossings, &m.over)
		if !p.abandoned {
			s.came[m.id] = p
		}
		s.mu.Unlock()
		tensors[i] = in
		if late > 0 {
			s.e.give(context.WithoutCancel(p.ctx), from, gradientCall{s.id, late, m.id, nil})
		}
	}
	return nil
}

// started counts a call that runs here.
func (s *state) started(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[p] = true
	if s.quiet == nil {
		s.quiet = make(chan struct{})
	}
}

// finished counts a call that has been answered.
func (s *state) finished(p *pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running[p] {
		return
	}
	delete(s.running, p)
	s.heard = time.Now()
	if len(s.running) == 0 {
		close(s.quiet)
		s.quiet = nil
	}
}

// waitQuiet waits until no call of the context runs here.
func (s *state) waitQuiet(ctx context.Context) error {
	for {
		s.mu.Lock()
		quiet, ended := s.quiet, s.ended
		var one *pass
		for p := range s.running {
			one = p
			break
		}
		s.mu.Unlock()
		switch {
		case ended != nil:
			return ended
		case quiet == nil:
			return nil
		}
		select {
		case <-quiet:
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s, called by %s, to return before the pass can begin: %w",
				one.method, s.e.wire.name(one.from), context.Cause(ctx))
		}
	}
}
