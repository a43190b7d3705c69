// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"
	"time"
)

// callContext is the context of a handler. It ends at the caller's deadline, when the
// caller cancels the call, and when the connection or the agent ends. The channel and
// timers for that are made only when the handler asks for them.
type callContext struct {
	base     context.Context // values
	deadline time.Time       // zero for none

	mu     sync.Mutex
	inner  context.Context // nil until somebody waits
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
	ended  error           // why, if it has been ended
	parked func(why error) // answers a call whose handler has returned and that is ended
}

type agentKey struct{}
type callerKey struct{}

// AgentOf returns the agent that serves the call whose handler has ctx, nil outside of
// handlers. Handlers call other agents with it.
func AgentOf(ctx context.Context) *Agent {
	a, _ := ctx.Value(agentKey{}).(*Agent)
	return a
}

// Caller returns the peer that made the call whose handler has ctx, nil outside of
// handlers. A client that is no agent of the job has rank -1 and cannot be called.
func Caller(ctx context.Context) *Peer {
	if s := callerServer(ctx); s != nil {
		return s.peer
	}
	return nil
}

// callerServer returns what answers the connection on which the call of the handler with
// ctx came.
func callerServer(ctx context.Context) *server {
	s, _ := ctx.Value(callerKey{}).(*server)
	return s
}

// Deadline implements [context.Context].
func (c *callContext) Deadline() (time.Time, bool) {
	if c.deadline.IsZero() {
		return c.base.Deadline()
	}
	return c.deadline, true
}

// full returns the context that can be waited for.
func (c *callContext) full() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		ctx, cancel := context.WithCancelCause(c.base)
		c.cancel = cancel
		if c.ended != nil {
			cancel(c.ended)
		} else if !c.deadline.IsZero() {
			ctx, c.stop = context.WithDeadline(ctx, c.deadline)
		}
		c.inner = ctx
	}
	return c.inner
}

// Done implements [context.Context].
func (c *callContext) Done() <-chan struct{} { return c.full().Done() }

// Err implements [context.Context].
func (c *callContext) Err() error {
	c.mu.Lock()
	idle := c.inner == nil && c.ended == nil
	c.mu.Unlock()
	if idle && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return c.base.Err()
	}
	return c.full().Err()
}

// Value implements [context.Context].
func (c *callContext) Value(key any) any {
	switch key.(type) {
	case agentKey, callerKey:
		return c.base.Value(key)
	}
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return c.base.Value(key)
}

// end ends the context for a reason, which context.Cause gives.
func (c *callContext) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = why
		if c.cancel != nil {
			c.cancel(why)
		}
		if c.parked != nil {
			go c.parked(why)
			c.parked = nil
		}
	}
}

// whyCanceled is why a call ends that its caller has canceled. Callers cancel at the
// deadline too, and their message may come before this agent's timer fires.
func (c *callContext) whyCanceled() error {
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// park sets the function that answers the call if it ends before its handler's future is
// done.
func (c *callContext) park(answer func(why error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		go answer(c.ended)
		return
	}
	c.parked = answer
}

// finish frees what the context holds.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
	if c.cancel != nil {
		c.cancel(nil)
	}
	if c.ended == nil {
		c.ended = context.Canceled
	}
	c.parked = nil
}
