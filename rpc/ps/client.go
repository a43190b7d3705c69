// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// Servers says where the servers of a job are.
type Servers struct {
	addrs []string
	store store.Store
	count int
}

// At lists the addresses of all servers, in the order of their numbers.
func At(addrs ...string) Servers { return Servers{addrs: slices.Clone(addrs), count: len(addrs)} }

// InStore finds the servers of a job, of which there are n, in the store to which they
// publish their addresses ([WithStore]).
func InStore(s store.Store, n int) Servers { return Servers{store: s, count: n} }

// Client is a process that uses the servers of a job: a worker, which pushes gradients, or a
// reader. A worker makes steps: in each step it pulls rows, and then pushes gradients by
// [Client.Step]. Any number of goroutines may pull; one calls Step.
type Client struct {
	agent   *rpc.Agent
	routing *Routing
	servers Servers
	remotes []*remote
	worker  int
	timeout time.Duration

	ctx    context.Context // of pushes: ends with the client
	cancel context.CancelFunc
	wait   sync.WaitGroup

	waiting atomic.Int64

	mu    sync.Mutex
	set   settings
	step  int64
	grads map[string]*gradients // of this step, by table
	rates map[string]rate
	err   error // of a push, that nobody has been told yet
	stale Staleness
}

// Dial makes a client of the servers of a job. It waits until all of them have answered. A
// worker goes on at the step that the servers expect of it ([Client.StepNumber]).
func Dial(ctx context.Context, a *rpc.Agent, at Servers, opts ...Option) (*Client, error) {
	fail := func(err error) (*Client, error) {
		if KindOf(err) != "" {
			return nil, err
		}
		return nil, fmt.Errorf("ps: dial: %w", err)
	}
	routing, err := NewRouting(at.count)
	if err != nil {
		return nil, err
	}
	o, err := applyOptions(at.count, opts)
	if err == nil && o.forServer != "" {
		err = fmt.Errorf("%s is an option of Serve", o.forServer)
	}
	if err == nil {
		err = know(a)
	}
	if err != nil {
		return fail(err)
	}
	c := &Client{agent: a, routing: routing, servers: at, worker: o.worker, timeout: o.timeout, set: o.want, grads: map[string]*gradients{}, rates: map[string]rate{}}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	ctx, cancel := c.limit(ctx)
	defer cancel()
	errs := make([]error, at.count)
	var wg sync.WaitGroup
	for i := range at.count {
		r := &remote{client: c, index: i, id: rand.Uint64(), wake: make(chan struct{}, 1), slots: make(chan struct{}, maxOutstanding)}
		c.remotes = append(c.remotes, r)
		wg.Go(func() { errs[i] = r.retry(ctx, func() error { return r.ensure(ctx) }) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		c.cancel()
		return fail(firstOf(errs))
	}
	c.rejoined()
	for _, r := range c.remotes {
		c.wait.Go(r.send)
	}
	return c, nil
}

// firstOf returns the first error of a list.
func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// limit gives a context without a deadline that of the client.
func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("the limit of %v has passed: %w", c.timeout, context.DeadlineExceeded))
}

// Worker returns the client's number among the workers, -1 for a reader.
func (c *Client) Worker() int { return c.worker }

// StepNumber returns the number of the step that the worker is in. The first is 0.
func (c *Client) StepNumber() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step
}

// Waiting returns how many keys in the updates that this client's pushes have made had no
// effect, because their rows begin with a later push (rows.Schema.Admit). A synchronous
// update is made by the push that comes last, with the keys of all workers.
func (c *Client) Waiting() int64 { return c.waiting.Load() }

// Tables returns the schemas of the tables that the servers have.
func (c *Client) Tables() []rows.Schema {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.set.Tables)
}

// Consistency returns that of the job.
func (c *Client) Consistency() Consistency {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set.Consistency == nil {
		return Asynchronous()
	}
	return *c.set.Consistency
}

// schema returns that of a table.
func (c *Client) schema(table string) (*rows.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.set.table(table); t != nil {
		return t, nil
	}
	return nil, errorf(KindTable, "the servers have no such table; they have %s", tableNames(c.set.Tables)).of(table)
}

// Close sends what was pushed, and ends the client. A worker that has ended for good calls
// Leave before.
func (c *Client) Close() error {
	ctx, cancel := c.limit(c.ctx)
	err := c.Flush(ctx)
	cancel()
	c.cancel()
	c.wait.Wait()
	return err
}

// Leave says that the worker makes no more steps, so that nobody waits for it. It waits
// for its pushes before.
func (c *Client) Leave(ctx context.Context) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	if err := c.Flush(ctx); err != nil || c.worker < 0 {
		return err
	}
	return c.each(func(r *remote) error {
		_, err := call(ctx, r, leaveMethod, func(uint64) leaveArgs { return leaveArgs{r.name(), c.worker} })
		return err
	})
}

// Status asks all servers how they are.
func (c *Client) Status(ctx context.Context) ([]Status, error) {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	out := make([]Status, len(c.remotes))
	err := c.each(func(r *remote) (err error) {
		out[r.index], err = call(ctx, r, statusMethod, nothing)
		return err
	})
	return out, err
}

// Snapshot makes all servers write snapshots.
func (c *Client) Snapshot(ctx context.Context) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	return c.each(func(r *remote) error {
		_, err := call(ctx, r, snapMethod, nothing)
		return err
	})
}

// nothing are the arguments of a method without any.
func nothing(uint64) struct{} { return struct{}{} }

// each does something with all servers at once.
func (c *Client) each(f func(r *remote) error) error {
	errs := make([]error, len(c.remotes))
	var wg sync.WaitGroup
	for i, r := range c.remotes {
		wg.Go(func() { errs[i] = f(r) })
	}
	wg.Wait()
	return firstOf(errs)
}

// complain keeps the error of a push for the next call.
func (c *Client) complain(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// complaint returns an error that complain has kept, once.
func (c *Client) complaint() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.err
	c.err = nil
	return err
}
