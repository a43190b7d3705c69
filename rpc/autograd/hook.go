// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// evaluationKey is the key under which a handler's context says that the call was made in
// an evaluation.
type evaluationKey struct{}

// evaluates says whether it is known that no gradients are wanted of what is computed
// under ctx.
func evaluates(ctx context.Context) bool {
	if c := nn.CarrierOf(ctx); c != nil {
		return !c.Training()
	}
	if on, _ := ctx.Value(evaluationKey{}).(bool); on {
		return true
	}
	from := rpc.Caller(ctx)
	return from != nil && from.Rank() < 0
}

// wantNoHistory refuses tensors with a history, which would end here.
func wantNoHistory(what string, tensors []*tensor.Tensor) error {
	for i, t := range tensors {
		if t.NeedsGrad() {
			return fmt.Errorf("autograd: the %s %d was computed from parameters, and the call belongs to no pass: %w", what, i, ErrNoPass)
		}
	}
	return nil
}

// sendCall is called before a call is sent. What it returns travels with the call.
func (e *engine) sendCall(ctx context.Context, to member, method string, tensors []*tensor.Tensor) ([]byte, error) {
	p := passOf(ctx)
	if p == nil {
		if err := wantNoHistory("argument of "+method, tensors); err != nil || !evaluates(ctx) {
			return nil, err
		}
		return (&header{}).append(nil), nil
	}
	s := p.s
	if s.e != e {
		return nil, s.fail("call", fmt.Errorf("%s is called through the agent of %s, the context belongs to that of %s",
			method, e.wire.name(e.rank), s.e.wire.name(s.e.rank)))
	}
	if p.method == "" {
		if _, err := s.current(); err == nil {
			return nil, s.fail("call", fmt.Errorf("%s is called while a backward pass runs; what is recomputed for it cannot call", method))
		}
	}
	first, crossed, err := p.send(to.Rank, "argument of "+method, tensors, false)
	if err != nil {
		return nil, s.fail("call", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil { // meanwhile; the peer does not know the context yet
		return nil, s.fail("call", s.ended)
	}
	s.learnLocked(to)
	h := header{context: s.id, life: s.life, walk: s.asked, first: first, crossed: crossed}
	return h.append(nil), nil
}

// receiveCall is called before the handler of a call runs. The context that it returns is
// the handler's. It replaces the tensors whose gradients flow back.
func (e *engine) receiveCall(ctx context.Context, from member, method string, extra []byte, tensors []*tensor.Tensor) (context.Context, error) {
	if len(extra) == 0 {
		return ctx, nil
	}
	h, err := parseHeader(extra, len(tensors))
	if err != nil {
		return nil, fmt.Errorf("autograd: call of %s from %s: %w", method, e.wire.name(from.Rank), err)
	}
	if h.context == noContext {
		return context.WithValue(ctx, evaluationKey{}, true), nil
	}
	s, err := e.join(ctx, h.context, h.life)
	if err != nil {
		return nil, &Error{Op: "call", Context: h.context, Worker: e.wire.name(e.rank), Rank: e.rank, Err: fmt.Errorf("%s from %s: %w", method, e.wire.name(from.Rank), err)}
	}
	p, err := s.newPass(ctx, method, from.Rank)
	if err != nil {
		return nil, s.fail("call", err)
	}
	s.learn(from)
	s.started(p)
	if err := p.receive(from.Rank, "argument of "+method, h, tensors); err != nil {
		s.finished(p)
		return nil, s.fail("call", err)
	}
	return p.ctx, nil
}

// sendReply is called with the handler's context before the answer is sent.
func (e *engine) sendReply(ctx context.Context, to int, method string, failed bool, tensors []*tensor.Tensor) ([]byte, error) {
	p := passOf(ctx)
	if p == nil || p.s.e != e {
		return nil, wantNoHistory("result of "+method, tensors)
	}
	s := p.s
	defer s.finished(p)
	if failed {
		tensors = nil
		p.unsend()
	}
	first, crossed, err := p.send(to, "result of "+method, tensors, true)
	if err != nil {
		return nil, s.fail("call", err)
	}
	for _, t := range tensors {
		if p.carrier != nil && t.Tape() == p.carrier.Tape() && !t.NeedsGrad() {
			t.Keep() // nobody confirms that it has arrived
		}
	}
	h := header{context: s.id, life: s.life, first: first, crossed: crossed, peers: s.members()}
	return h.append(nil), nil
}

// abandon is called in place of sendReply for a call that has been given up while its
// handler goes on. The handler's pass has no part in backward passes any more, and the
// garbage collector frees it.
func (e *engine) abandon(ctx context.Context) {
	p := passOf(ctx)
	if p == nil || p.s.e != e {
		return
	}
	p.unsend()
	s := p.s
	s.mu.Lock()
	p.abandoned = true
	s.passes = slices.DeleteFunc(s.passes, func(q *pass) bool { return q == p })
	maps.DeleteFunc(s.came, func(_ uint64, q *pass) bool { return q == p }) // as if they had never come
	s.mu.Unlock()
	s.finished(p)
}

// receiveReply is called with the caller's context, on the caller's goroutine, when an
// answer has come.
func (e *engine) receiveReply(ctx context.Context, from int, method string, failed bool, extra []byte, tensors []*tensor.Tensor) error {
	p := passOf(ctx)
	if p == nil || p.s.e != e {
		return nil
	}
	s := p.s
	if len(extra) == 0 {
		if failed {
			return nil
		}
		return s.fail("call", fmt.Errorf("answer to %s: %s takes no part in contexts: make its agent with autograd.WithEngine()", method, e.wire.name(from)))
	}
	h, err := parseHeader(extra, len(tensors))
	switch {
	case err != nil:
	case h.context != s.id:
		err = fmt.Errorf("it belongs to context %s", contextName(h.context))
	default:
		if p.method == "" && len(h.crossed) > 0 {
			if _, walking := s.current(); walking == nil {
				err = errors.New("it is waited for while a backward pass runs")
				break
			}
		}
		s.learn(h.peers...)
		err = p.receive(from, "result of "+method, h, tensors)
	}
	if err != nil {
		return s.fail("call", fmt.Errorf("answer to %s from %s: %w", method, e.wire.name(from), err))
	}
	return nil
}
