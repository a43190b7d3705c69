// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/internal/hook"
)

// What engines tell each other, as methods of agents.
const prefix = "cohort.autograd."

var (
	prepareMethod  = rpc.NewMethod[prepareCall, prepareAnswer](prefix + "prepare")
	walkMethod     = rpc.NewMethod[walkCall, struct{}](prefix + "walk")
	gradientMethod = rpc.NewMethod[gradientCall, struct{}](prefix + "gradient")
	releaseMethod  = rpc.NewMethod[releaseCall, struct{}](prefix + "release")
	missingMethod  = rpc.NewMethod[missingCall, bool](prefix + "missing")
	aliveMethod    = rpc.NewMethod[aliveCall, aliveAnswer](prefix + "alive")
)

// maxWalks bounds the backward passes that run on one process. They count apart
// from other calls, which may wait for them.
const maxWalks = 1 << 12

// WithEngine lets an agent take part in contexts. Each agent of the job needs an engine of
// its own:
//
//	a, err := rpc.Init(ctx, "worker0", rpc.WithGroup(g), autograd.WithEngine(), …)
func WithEngine() rpc.Option {
	h := &agentHook{}
	return rpc.WithOptions(
		rpc.WithBaseContext(func(ctx context.Context) context.Context { return hook.NewContext(ctx, h) }),
		rpc.WithError(prefix+"released", ErrReleased),
		rpc.WithError(prefix+"unreached", ErrUnreached),
		rpc.WithError(prefix+"no_pass", ErrNoPass),
		rpc.Serve(prepareMethod, func(ctx context.Context, in prepareCall) (prepareAnswer, error) { return h.engine.onPrepare(ctx, in) }),
		rpc.Serve(walkMethod, func(ctx context.Context, in walkCall) (struct{}, error) {
			return struct{}{}, bare(h.engine.onWalk(ctx, rpc.Caller(ctx).Rank(), in))
		}, rpc.WithMethodConcurrency(maxWalks)),
		rpc.Serve(gradientMethod, func(ctx context.Context, in gradientCall) (struct{}, error) {
			return struct{}{}, bare(h.engine.onGradient(rpc.Caller(ctx).Rank(), in))
		}, rpc.WithQuick()),
		rpc.Serve(releaseMethod, func(ctx context.Context, in releaseCall) (struct{}, error) {
			h.engine.onRelease(rpc.Caller(ctx).Rank(), in)
			return struct{}{}, nil
		}),
		rpc.Serve(missingMethod, func(ctx context.Context, in missingCall) (bool, error) { return h.engine.onMissing(ctx, in) }),
		rpc.Serve(aliveMethod, func(_ context.Context, in aliveCall) (aliveAnswer, error) { return h.engine.onAlive(in), nil }),
		serveOptimizers(h),
	)
}

// bare takes the place of the failure off an error: the process that asked adds it again.
func bare(err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own.Err
	}
	return err
}

// engineOf returns the engine of an agent.
func engineOf(a *rpc.Agent) (*engine, error) {
	if a == nil {
		return nil, errors.New("autograd: there is no agent")
	}
	h, ok := hook.FromContext(a.Context()).(*agentHook)
	if !ok {
		return nil, fmt.Errorf("autograd: %v was made without autograd.WithEngine(): give it to rpc.Init", a)
	}
	return h.engine, nil
}

// NewContext begins a computation over the processes of an agent's job.
func NewContext(a *rpc.Agent, opts ...ContextOption) (*Context, error) {
	e, err := engineOf(a)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("autograd: a context of %v: %w", a, &rpc.Error{Rank: -1, Kind: rpc.KindClosed, Msg: "the agent has been closed"})
	}
	return newContext(e, opts), nil
}

// agentHook is the engine as an agent's hook.
type agentHook struct{ engine *engine }

// Attach is called when the agent knows its peers.
func (h *agentHook) Attach(a *rpc.Agent, life uint64) (detach func()) {
	if h.engine != nil {
		panic("autograd: one WithEngine() was given to two agents: call it for each")
	}
	e := newEngine(a.Rank(), a.Size(), life, agentWire{a})
	h.engine = e
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.run(ctx) })
	return func() {
		cancel()
		running.Wait()
		e.close()
	}
}

// SendCall implements [hook.Hook].
func (h *agentHook) SendCall(ctx context.Context, to hook.Peer, m *hook.Message) (err error) {
	if !strings.HasPrefix(m.Method, prefix) {
		m.Extra, err = h.engine.sendCall(ctx, member{to.Rank, to.Life}, m.Method, m.Tensors)
	}
	return err
}

// ReceiveCall implements [hook.Hook].
func (h *agentHook) ReceiveCall(ctx context.Context, from hook.Peer, m *hook.Message) (context.Context, error) {
	if len(m.Extra) > 0 && from.Rank < 0 {
		return nil, fmt.Errorf("autograd: %s is no member of the job, and cannot take part in a context", from.Name)
	}
	return h.engine.receiveCall(ctx, member{from.Rank, from.Life}, m.Method, m.Extra, m.Tensors)
}

// SendReply implements [hook.Hook].
func (h *agentHook) SendReply(ctx context.Context, to hook.Peer, m *hook.Message) (err error) {
	if m.Running {
		h.engine.abandon(ctx)
		return nil
	}
	m.Extra, err = h.engine.sendReply(ctx, to.Rank, m.Method, m.Failed, m.Tensors)
	return err
}

// ReceiveReply implements [hook.Hook].
func (h *agentHook) ReceiveReply(ctx context.Context, from hook.Peer, m *hook.Message) error {
	if strings.HasPrefix(m.Method, prefix) {
		return nil
	}
	return h.engine.receiveReply(ctx, from.Rank, m.Method, m.Failed, m.Extra, m.Tensors)
}

// SendItem implements [hook.Hook].
func (h *agentHook) SendItem(m *hook.Message) error {
	for i, t := range m.Tensors {
		if t.NeedsGrad() {
			return fmt.Errorf("autograd: tensor %d of a message on the stream was computed from parameters, and what goes through streams is not recorded: send what Detach returns, or make calls", i)
		}
	}
	return nil
}

// Lost implements [hook.Hook].
func (h *agentHook) Lost(who hook.Peer, err error) { h.engine.lost(member{who.Rank, who.Life}, err) }

// agentWire is the wire over an agent.
type agentWire struct{ a *rpc.Agent }

func (w agentWire) name(rank int) string { return w.a.PeerRank(rank).Name() }

func (w agentWire) prepare(ctx context.Context, to int, in prepareCall) (prepareAnswer, error) {
	out, err := prepareMethod.Call(ctx, w.a.PeerRank(to), in)
	return out, plainly(err)
}

func (w agentWire) walk(ctx context.Context, to int, in walkCall) error {
	_, err := walkMethod.Call(ctx, w.a.PeerRank(to), in)
	return plainly(err)
}

func (w agentWire) gradient(ctx context.Context, to int, in gradientCall) (wait func() error) {
	f := gradientMethod.Async(ctx, w.a.PeerRank(to), in)
	return func() error {
		_, err := f.Wait(ctx)
		return plainly(err)
	}
}

func (w agentWire) missing(ctx context.Context, to int, in missingCall) (bool, error) {
	out, err := missingMethod.Call(ctx, w.a.PeerRank(to), in)
	return out, plainly(err)
}

func (w agentWire) release(to int, in releaseCall) {
	releaseMethod.Async(context.Background(), w.a.PeerRank(to), in)
}

func (w agentWire) alive(ctx context.Context, to int, in aliveCall) (aliveAnswer, error) {
	return aliveMethod.Call(ctx, w.a.PeerRank(to), in)
}

// remote is an error of another process in its own words.
type remote struct{ err *rpc.Error }

func (r remote) Error() string { return r.err.Msg }
func (r remote) Unwrap() error { return r.err }

// plainly leaves the name of the method out of an error of another process: no user calls
// that method.
func plainly(err error) error {
	var e *rpc.Error
	if errors.As(err, &e) && e.Kind == rpc.KindApplication {
		return remote{e}
	}
	return err
}
