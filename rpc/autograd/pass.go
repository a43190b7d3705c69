// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// pass is one forward pass: that of a call's handler, or one that the context's maker
// began. Its tape belongs to the goroutine that computes.
type pass struct {
	s        *state
	ctx      context.Context
	carrier  *nn.Ctx // made when it is first needed
	parts    []*part // of the parameters read
	method   string  // of the call, "" if it is the maker's own
	from     int     // the rank of the caller
	numSent  int     // tensors sent whose arrival nobody has confirmed yet
	ownGrads bool    // gradients go to the parameters themselves
	// crossings are set to true when a backward pass has consumed the tensors that crossed.
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
	// late is the last backward pass that had begun, at either side, when the tensor was
	// sent and came; 0: none. The loss of that pass does not depend on the tensor, so it is
	// answered at once that there is no gradient.
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

// leaf returns where the gradient of a parameter goes that the pass reads.
func (p *pass) leaf(param *nn.Parameter) tensor.Leaf {
	l := p.s.grads.leaf(param)
	p.parts = append(p.parts, l)
	return l
}

// send records the tensors of a message that gradients flow through: they go to another
// process.
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
			// A node of its own keeps the tensor's place in the order of the tape.
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

// unsend drops the records of an answer that could not be sent.
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

// receive puts tensors of another process on the tape: as leaves that send their gradients
// back.
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
