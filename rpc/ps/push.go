// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// Gradient is the gradient of rows of a table.
type Gradient struct {
	Table string
	Keys  []int64        // each once, increasing
	Grads *tensor.Tensor // float32 [len(Keys), width]
}

// gradients are those of a table in a step.
type gradients struct{ parts []Gradient }

// outgoing is a push on its way to a server.
type outgoing struct {
	item  pushItem
	rows  bool // its caller waits for the new rows
	done  chan struct{}
	reply pushReply
	err   error
}

// maxTogether is how many pushes go to a server in one request.
const maxTogether = 64

// Add adds gradients to those that the next [Client.Step] pushes. Gradients of a table that
// come in several parts are added up in the order in which they came.
func (c *Client) Add(grads ...Gradient) error {
	for _, g := range grads {
		t, err := c.schema(g.Table)
		if err != nil {
			return err
		}
		if g.Grads == nil || g.Grads.NumDims() != 2 || g.Grads.Dim(0) != len(g.Keys) || g.Grads.Dim(1) != t.Width || !g.Grads.DType().IsFloat() {
			return errorf(KindValues, "the gradients are %s: want float32 [%d, %d]", shapeText(g.Grads), len(g.Keys), t.Width).of(g.Table).by(c.worker, -1)
		}
		for i, k := range g.Keys {
			if i > 0 && g.Keys[i-1] >= k {
				return errorf(KindKeys, "the keys of a gradient must increase: sort them, and add up the gradients of equal ones").of(g.Table).keys(g.Keys[i-1], k)
			}
		}
		if n := len(g.Keys); n > 0 && t.Rows > 0 && (g.Keys[0] < 0 || g.Keys[n-1] >= int64(t.Rows)) {
			return errorf(KindKeys, "the table has the keys 0 to %d", t.Rows-1).of(g.Table).keys(g.Keys[0], g.Keys[n-1])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range grads {
		all := c.grads[g.Table]
		if all == nil {
			all = &gradients{}
			c.grads[g.Table] = all
		}
		all.parts = append(all.parts, g)
	}
	return nil
}

// sum returns the gradient of a table.
func (g *gradients) sum() Gradient {
	if len(g.parts) == 1 {
		return g.parts[0]
	}
	var parts []part
	for _, p := range g.parts {
		parts = append(parts, part{keys: p.Keys, grads: p.Grads.Float32s()})
	}
	sum := sumRows(slices.DeleteFunc(parts, func(p part) bool { return len(p.keys) == 0 }))
	return Gradient{g.parts[0].Table, sum.keys, tensor.FromFloat32(sum.grads, len(sum.keys), g.parts[0].Grads.Dim(1))}
}

// Step pushes the gradients of the step and begins the next step. It does not wait for the
// servers: an error of a push is returned by a later call of Step, Pull or Flush. It waits
// while many pushes have not been acknowledged.
func (c *Client) Step(ctx context.Context) error {
	_, err := c.stepOn(ctx, false, false)
	return err
}

// stepOn sends the pushes of the step, to each server one. With rows the answers have the new
// rows. If here, the caller waits for them anyway, and sends itself what goes to a single
// server.
func (c *Client) stepOn(outer context.Context, rows, here bool) ([]*outgoing, error) {
	if err := c.complaint(); err != nil {
		return nil, err
	}
	ctx, cancel := c.limit(outer)
	defer cancel()
	c.mu.Lock()
	step, collected := c.step, c.grads
	c.grads = map[string]*gradients{}
	c.step++
	rates := maps.Clone(c.rates)
	for table, r := range c.rates {
		c.rates[table] = rate{r.lr, false}
	}
	// Others wait for a worker's part of each batch, also for one without gradients.
	skips := c.set.Consistency == nil || c.set.Consistency.mode() == ModeAsynchronous && c.set.Consistency.Batch == 0 && !rows
	c.mu.Unlock()
	items := make([]pushItem, len(c.remotes))
	for _, table := range slices.Sorted(maps.Keys(collected)) {
		if err := c.deal(collected[table].sum(), rates[table].lr, items); err != nil {
			return nil, err
		}
	}
	if err := c.dealRates(rates, items); err != nil {
		return nil, err
	}
	var out []*outgoing
	for i, r := range c.remotes {
		items[i].Step = step
		if step < r.first || skips && len(items[i].Parts) == 0 {
			out = append(out, nil)
			continue
		}
		o := &outgoing{item: items[i], rows: rows, done: make(chan struct{})}
		sends, err := r.push(ctx, o, here && len(c.remotes) == 1)
		if err != nil {
			return nil, err
		}
		if sends {
			r.sendHere(outer, o)
		}
		out = append(out, o)
	}
	return out, nil
}

// deal splits a gradient over the servers.
func (c *Client) deal(g Gradient, lr float64, items []pushItem) error {
	t, err := c.schema(g.Table)
	if err != nil {
		return err
	}
	grads := g.Grads.Untracked().Contiguous()
	if w := wireType(t); w == tensor.BFloat16 || w == tensor.Float16 {
		grads = grads.To(w)
	}
	s := c.routing.split(g.Keys, t.Rows)
	for i, keys := range s.keys {
		if len(keys) == 0 {
			continue
		}
		part := grads
		if len(keys) < len(g.Keys) {
			if part, err = rowsAt(grads, s.at[i]); err != nil {
				return err
			}
		}
		items[i].Parts = append(items[i].Parts, pushPart{Table: g.Table, LR: lr, Keys: tensor.FromInt64(keys), Grads: part})
	}
	return nil
}

// dealRates tells learning rates that are new to the servers that get no gradient.
func (c *Client) dealRates(rates map[string]rate, items []pushItem) error {
	for _, table := range slices.Sorted(maps.Keys(rates)) {
		if !rates[table].fresh {
			continue
		}
		t, err := c.schema(table)
		if err != nil {
			return err
		}
		for i := range items {
			if !slices.ContainsFunc(items[i].Parts, func(p pushPart) bool { return p.Table == table }) {
				items[i].Parts = append(items[i].Parts, pushPart{Table: table, LR: rates[table].lr, Keys: tensor.FromInt64(nil, 0), Grads: tensor.Zeros(0, t.Width)})
			}
		}
	}
	return nil
}

// rate is a learning rate, and whether the servers have not heard of it.
type rate struct {
	lr    float64
	fresh bool
}

// SetLR sets the learning rate of a table from the push of this step on, in place of its
// optimizer's. Synchronous workers all set the same: that of the first worker counts.
func (c *Client) SetLR(table string, lr float64) error {
	if _, err := c.schema(table); err != nil {
		return err
	}
	if !(lr > 0 && lr <= math.MaxFloat32) {
		return errorf(KindValues, "the learning rate is %v: want a finite number above 0", lr).of(table)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rates[table]; r.lr != lr {
		c.rates[table] = rate{lr, true}
	}
	return nil
}

// rowsAt copies rows of a tensor.
func rowsAt(t *tensor.Tensor, at []int32) (*tensor.Tensor, error) {
	out := tensor.Empty(t.DType(), len(at), t.Dim(1))
	src, err := bytesOf(t)
	if err != nil {
		return nil, err
	}
	dst, err := bytesOf(out)
	if err != nil {
		return nil, err
	}
	size := t.Dim(1) * t.DType().Size()
	for i, j := range at {
		copy(dst[i*size:(i+1)*size], src[int(j)*size:])
	}
	return out, nil
}

// Flush waits until the servers have acknowledged all pushes.
func (c *Client) Flush(ctx context.Context) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	for _, r := range c.remotes {
		for range cap(r.slots) {
			select {
			case r.slots <- struct{}{}:
			case <-ctx.Done():
				e := r.unreachable("it has not acknowledged all pushes: %w", context.Cause(ctx))
				if err := c.complaint(); err != nil {
					return err
				}
				return e
			}
		}
		for range cap(r.slots) {
			<-r.slots
		}
	}
	return c.complaint()
}

// Push adds gradients, makes a step and waits until the servers have acknowledged it.
func (c *Client) Push(ctx context.Context, grads ...Gradient) error {
	if err := c.Add(grads...); err != nil {
		return err
	}
	if _, err := c.stepOn(ctx, false, true); err != nil {
		return err
	}
	return c.Flush(ctx)
}

// Update is [Client.Push] with servers that make batched updates: it waits until the batch
// has been applied, and returns the new rows of the keys of each gradient, float32
// [keys, width].
func (c *Client) Update(ctx context.Context, grads ...Gradient) ([]*tensor.Tensor, error) {
	if c.Consistency().Batch == 0 {
		return nil, errorf(KindSettings, "Update wants servers with batched updates; the consistency is %s", c.Consistency()).by(c.worker, -1)
	}
	for i, g := range grads {
		for _, h := range grads[:i] {
			if g.Table == h.Table {
				return nil, errorf(KindTable, "Update was given two gradients of the table").of(g.Table)
			}
		}
	}
	if err := c.Add(grads...); err != nil {
		return nil, err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	sent, err := c.stepOn(ctx, true, true)
	if err != nil {
		return nil, err
	}
	for i, o := range sent {
		if o == nil {
			continue
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, c.remotes[i].unreachable("it has not acknowledged the push: %w", context.Cause(ctx))
		}
		if o.err != nil {
			c.complaint() // it is this one
			return nil, o.err
		}
	}
	out := make([]*tensor.Tensor, len(grads))
	for i, g := range grads {
		t, err := c.schema(g.Table)
		if err != nil {
			return nil, err
		}
		parts := make([]*tensor.Tensor, len(c.remotes))
		for s, o := range sent {
			if o == nil {
				continue
			}
			for j, p := range o.item.Parts {
				if p.Table == g.Table {
					if j >= len(o.reply.Rows) {
						return nil, c.remotes[s].unreachable("its answer lacks rows")
					}
					parts[s] = o.reply.Rows[j]
				}
			}
		}
		if out[i], err = c.join(t, c.routing.split(g.Keys, t.Rows), parts, len(g.Keys), nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// push gives a push to the goroutine that sends. If the caller wants to send it and nothing
// is under way, sends is true, and the caller calls sendHere.
func (r *remote) push(ctx context.Context, o *outgoing, here bool) (sends bool, err error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return false, r.unreachable("it has not acknowledged %d pushes: %w", maxOutstanding, context.Cause(ctx))
	case <-r.client.ctx.Done():
		return false, r.unreachable("the client has been closed")
	}
	r.mu.Lock()
	if sends = here && !r.sending && len(r.queue) == 0; sends {
		r.sending = true
	} else {
		r.queue = append(r.queue, o)
	}
	r.mu.Unlock()
	if !sends {
		r.goOn()
	}
	return sends, nil
}

// goOn lets the goroutine that sends look at the queue.
func (r *remote) goOn() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// sendHere sends a push in the goroutine of its caller: so nobody has to be woken. If the
// caller's time ends before the push is acknowledged, the goroutine that sends goes on, with
// the same number.
func (r *remote) sendHere(outer context.Context, o *outgoing) {
	ctx, cancel := context.WithCancel(r.client.ctx)
	defer cancel()
	defer context.AfterFunc(outer, cancel)()
	err := r.deliver(ctx, []*outgoing{o})
	ended := err == nil || outer.Err() == nil || r.client.ctx.Err() != nil
	if ended {
		if err != nil {
			r.doubt(err)
		}
		r.end(o, err)
	}
	r.mu.Lock()
	if r.sending = false; !ended {
		r.queue = slices.Insert(r.queue, 0, o)
	}
	more := len(r.queue) > 0
	r.mu.Unlock()
	if more {
		r.goOn()
	}
}

// send sends pushes, one request at a time. Those that come meanwhile go together in the
// next request.
func (r *remote) send() {
	for {
		r.mu.Lock()
		n := min(len(r.queue), maxTogether)
		if r.sending {
			n = 0
		}
		all := r.queue[:n:n]
		r.queue = r.queue[n:]
		r.sending = r.sending || n > 0
		r.mu.Unlock()
		if n == 0 {
			select {
			case <-r.wake:
				continue
			case <-r.client.ctx.Done():
				return
			}
		}
		r.sendAll(all)
		r.mu.Lock()
		r.sending = false
		r.mu.Unlock()
	}
}

// sendAll sends pushes together.
func (r *remote) sendAll(all []*outgoing) {
	ctx := r.client.ctx
	err := r.deliver(ctx, all)
	var e *Error
	if err != nil && len(all) > 1 && errors.As(err, &e) && e.Kind != KindUnreachable && e.Kind != KindHistory {
		for _, o := range all { // which of them was it?
			err := r.deliver(ctx, []*outgoing{o})
			if err != nil {
				r.doubt(err)
			}
			r.end(o, err)
		}
		return
	}
	if err != nil {
		r.doubt(err)
	}
	for _, o := range all {
		r.end(o, err)
	}
}

// end says that a push has been acknowledged, or has failed.
func (r *remote) end(o *outgoing, err error) {
	if o.err = err; err != nil {
		r.client.complain(err)
	}
	close(o.done)
	<-r.slots
}

// deliver sends pushes until they are acknowledged, however often the connection is lost.
func (r *remote) deliver(ctx context.Context, all []*outgoing) error {
	c := r.client
	ctx, cancel := c.limit(ctx)
	defer cancel()
	r.mu.Lock()
	first := r.acked + 1
	r.sent = max(r.sent, r.acked+uint64(len(all)))
	// Where nobody wants rows, nobody waits for a batch: what would complete it may be a push
	// that is sent after this one.
	args := pushArgs{Client: r.id, Worker: c.worker, Number: first, Kept: !all[len(all)-1].rows}
	r.mu.Unlock()
	for _, o := range all {
		args.Pushes = append(args.Pushes, o.item)
	}
	reply, err := call(ctx, r, pushMethod, func(life uint64) pushArgs {
		args.Life = life
		return args
	})
	if err != nil {
		return err
	}
	all[len(all)-1].reply = reply
	c.waiting.Add(reply.Waiting)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked, r.kept = first+uint64(len(all))-1, true
	return nil
}
