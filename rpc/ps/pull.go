// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// Request asks for rows of a table.
type Request struct {
	Table string
	Keys  []int64 // in any order, each as often as it is wanted
	// Offsets, if not nil, says where bags of keys begin: the answer has the sum of the
	// rows of each bag, which the servers compute. That saves bytes where bags are large.
	// Several servers add up their own rows first, so the last bits of a sum depend on
	// the number of servers.
	Offsets []int64
}

// Pulled is rows that are on their way.
type Pulled struct {
	client *Client
	parts  []wanted
	calls  []*rpc.Future[pullReply] // by server, nil where nothing was asked
	args   []pullArgs
	once   sync.Once
	out    []*tensor.Tensor
	err    error
	ctx    context.Context // of the requests
	cancel context.CancelFunc
}

// wanted is a request as it is dealt out to the servers.
type wanted struct {
	schema  *rows.Schema
	split   split
	once    int     // number of keys, each counted once
	at      []int32 // where each key of the request is among them; nil: they are the request's
	bags    int     // with offsets
	pooled  bool
	partsAt []int // by server: the number of its part in the server's request, -1 for none
}

// Pull returns the rows of the requests, float32 [keys, width] or [bags, width], as the
// step of the worker sees them. Keys that are wanted several times travel once, unless there
// are few of them. There is one request a server.
func (c *Client) Pull(ctx context.Context, requests ...Request) ([]*tensor.Tensor, error) {
	p, err := c.plan(ctx, c.StepNumber(), requests)
	if err != nil {
		return nil, err
	}
	if p.numAsked() > 1 {
		p.ask()
	}
	return p.Wait(ctx)
}

// Prefetch asks for the rows of a step, which may be a later one, and does not wait for
// them. Synchronous servers answer when the steps before have been applied. Otherwise the
// rows are those of when the servers get the request.
func (c *Client) Prefetch(ctx context.Context, step int64, requests ...Request) (*Pulled, error) {
	p, err := c.plan(ctx, step, requests)
	if err != nil {
		return nil, err
	}
	p.ask()
	return p, nil
}

// plan deals requests out to the servers, and asks none.
func (c *Client) plan(ctx context.Context, step int64, requests []Request) (*Pulled, error) {
	if err := c.complaint(); err != nil {
		return nil, err
	}
	p := &Pulled{client: c, calls: make([]*rpc.Future[pullReply], len(c.remotes)), args: make([]pullArgs, len(c.remotes))}
	for i := range p.args {
		p.args[i].Worker, p.args[i].Step = c.worker, step
	}
	for _, q := range requests {
		w, err := c.want(q, p.args)
		if err != nil {
			return nil, err
		}
		p.parts = append(p.parts, w)
	}
	p.ctx, p.cancel = c.limit(ctx)
	return p, nil
}

// numAsked is the number of servers that have some of the rows.
func (p *Pulled) numAsked() int {
	n := 0
	for i := range p.args {
		n += min(len(p.args[i].Parts), 1)
	}
	return n
}

// ask sends the requests.
func (p *Pulled) ask() {
	for i, r := range p.client.remotes {
		if peer, life := r.met(); peer != nil && len(p.args[i].Parts) > 0 {
			p.args[i].Life = life
			p.calls[i] = pullMethod.Async(p.ctx, peer, p.args[i])
		}
	}
}

// want deals a request out to the servers.
func (c *Client) want(q Request, args []pullArgs) (w wanted, err error) {
	if w.schema, err = c.schema(q.Table); err != nil {
		return w, err
	}
	if t := w.schema; t.Rows > 0 {
		for _, k := range q.Keys {
			if k < 0 || k >= int64(t.Rows) {
				return w, errorf(KindKeys, "the table has the keys 0 to %d", t.Rows-1).of(q.Table).keys(k, k)
			}
		}
	}
	if w.pooled = q.Offsets != nil; w.pooled {
		if no := checkOffsets(q.Offsets, len(q.Keys)); no != nil {
			return w, no.of(q.Table)
		}
		w.bags = len(q.Offsets)
		w.split = c.routing.split(q.Keys, w.schema.Rows)
	} else {
		keys := q.Keys
		if !increasing(keys) {
			keys, w.at = distinct(keys)
		}
		w.once = len(keys)
		w.split = c.routing.split(keys, w.schema.Rows)
	}
	w.partsAt = make([]int, len(args))
	for s, keys := range w.split.keys {
		if w.partsAt[s] = -1; len(keys) == 0 {
			continue
		}
		w.partsAt[s] = len(args[s].Parts)
		p := pullPart{Table: q.Table, Keys: tensor.FromInt64(keys)}
		if w.pooled {
			p.Offsets = tensor.FromInt64(offsetsOf(q.Offsets, len(q.Keys), w.split.at[s], len(args) == 1))
		}
		args[s].Parts = append(args[s].Parts, p)
	}
	return w, nil
}

// increasing reports whether each key is above the one before.
func increasing(keys []int64) bool {
	for i := 1; i < len(keys); i++ {
		if keys[i-1] >= keys[i] {
			return false
		}
	}
	return true
}

// offsetsOf returns where the bags begin among the keys of one server.
func offsetsOf(offsets []int64, n int, at []int32, whole bool) []int64 {
	if whole {
		return offsets
	}
	out := make([]int64, len(offsets))
	i := 0
	for b := range offsets {
		out[b] = int64(i)
		end := n
		if b+1 < len(offsets) {
			end = int(offsets[b+1])
		}
		for i < len(at) && int(at[i]) < end {
			i++
		}
	}
	return out
}

// Wait returns the rows when they are there. It may be called again.
func (p *Pulled) Wait(ctx context.Context) ([]*tensor.Tensor, error) {
	p.once.Do(func() { p.out, p.err = p.wait(ctx) })
	return p.out, p.err
}

func (p *Pulled) wait(ctx context.Context) ([]*tensor.Tensor, error) {
	c := p.client
	defer p.cancel()
	if _, ok := ctx.Deadline(); !ok {
		ctx = p.ctx // whose limit the servers know
	}
	replies := make([]pullReply, len(c.remotes))
	errs := make([]error, len(c.remotes))
	var late sync.WaitGroup
	for i, r := range c.remotes {
		if len(p.args[i].Parts) == 0 {
			continue
		}
		if f := p.calls[i]; f != nil {
			if replies[i], errs[i] = f.Wait(ctx); errs[i] == nil {
				continue
			}
			if !r.passes(errs[i]) {
				errs[i] = r.wrap(ctx, errs[i])
				continue
			}
			r.forget()
		}
		fetch := func() {
			replies[i], errs[i] = call(ctx, r, pullMethod, func(life uint64) pullArgs {
				p.args[i].Life = life
				return p.args[i]
			})
		}
		if p.numAsked() == 1 { // this goroutine may read the answer
			fetch()
		} else {
			late.Go(fetch)
		}
	}
	late.Wait()
	if err := firstOf(errs); err != nil {
		return nil, err
	}
	c.noteBehind(replies)
	out := make([]*tensor.Tensor, len(p.parts))
	taken := map[*tensor.Tensor]bool{}
	for i := range p.parts {
		w := &p.parts[i]
		parts := make([]*tensor.Tensor, len(c.remotes))
		for s, at := range w.partsAt {
			if at < 0 {
				continue
			}
			if at >= len(replies[s].Rows) || replies[s].Rows[at] == nil {
				return nil, c.remotes[s].unreachable("its answer lacks rows of table %q", w.schema.Name)
			}
			if parts[s] = replies[s].Rows[at]; taken[parts[s]] {
				return nil, c.remotes[s].unreachable("its answer has the same tensor twice")
			}
			taken[parts[s]] = true
		}
		t, err := c.finish(w, parts)
		if err != nil {
			return nil, err
		}
		out[i] = t
	}
	return out, nil
}

// finish puts an answer together.
func (c *Client) finish(w *wanted, parts []*tensor.Tensor) (*tensor.Tensor, error) {
	if w.pooled {
		return c.addBags(w, parts)
	}
	return c.join(w.schema, w.split, parts, w.once, w.at)
}

// join puts the rows of n keys together, in the order of the keys, or of those that at
// lists. It takes the parts over.
func (c *Client) join(t *rows.Schema, s split, parts []*tensor.Tensor, n int, at []int32) (*tensor.Tensor, error) {
	from := make([][]byte, len(parts)) // rows as float32
	all := -1                          // the server that has all
	for i, p := range parts {
		if p == nil {
			if len(s.keys[i]) > 0 {
				return nil, c.remotes[i].unreachable("its answer lacks rows of table %q", t.Name)
			}
			continue
		}
		rows, err := decodeRows(t, p, len(s.keys[i]))
		if err == nil {
			from[i], err = bytesOf(rows)
		}
		if err != nil {
			return nil, c.remotes[i].unreachable("its answer is not what table %q has: %w", t.Name, err)
		}
		if rows != p {
			p.Free()
			parts[i] = rows
		}
		if len(s.keys[i]) == n {
			all = i
		}
	}
	if all >= 0 && at == nil {
		return parts[all], nil
	}
	size := 4 * t.Width
	var where []place
	if all < 0 {
		where = make([]place, n)
		for i, list := range s.at {
			for j, k := range list {
				where[k] = place{int32(i), int32(j)}
			}
		}
	}
	length := n
	if at != nil {
		length = len(at)
	}
	out := tensor.Empty(tensor.Float32, length, t.Width)
	dst, err := bytesOf(out)
	if err != nil {
		return nil, err
	}
	for i := range length {
		p := place{int32(all), int32(i)}
		if at != nil {
			p.row = at[i]
		}
		if where != nil {
			p = where[p.row]
		}
		copy(dst[i*size:(i+1)*size], from[p.server][int(p.row)*size:])
	}
	for _, p := range parts {
		if p != nil {
			p.Free()
		}
	}
	return out, nil
}

// place is where a row is among the answers.
type place struct{ server, row int32 }

// decodeRows makes float32 of rows as they travel.
func decodeRows(t *rows.Schema, p *tensor.Tensor, n int) (*tensor.Tensor, error) {
	width, dtype := t.Width, wireType(t)
	if dtype == tensor.Int8 {
		width, dtype = width+4, tensor.Uint8
	}
	if p.DType() != dtype || p.NumDims() != 2 || p.Dim(0) != n || p.Dim(1) != width {
		return nil, fmt.Errorf("got %s, want %v [%d %d]", shapeText(p), dtype, n, width)
	}
	if dtype != tensor.Uint8 {
		return p.To(tensor.Float32), nil
	}
	out := tensor.Empty(tensor.Float32, n, t.Width)
	src, err := bytesOf(p)
	if err != nil {
		return nil, err
	}
	dst, err := float32sOf(out)
	if err != nil {
		return nil, err
	}
	for i := range n {
		row := src[i*width : (i+1)*width]
		scale := math.Float32frombits(binary.LittleEndian.Uint32(row[t.Width:]))
		for j := range t.Width {
			dst[i*t.Width+j] = float32(int8(row[j])) * scale
		}
	}
	return out, nil
}

// addBags adds up what the servers have pooled.
func (c *Client) addBags(w *wanted, parts []*tensor.Tensor) (*tensor.Tensor, error) {
	var sum *tensor.Tensor
	for i, p := range parts {
		if p == nil {
			continue
		}
		if p.DType() != tensor.Float32 || p.NumDims() != 2 || p.Dim(0) != w.bags || p.Dim(1) != w.schema.Width {
			return nil, c.remotes[i].unreachable("its answer for table %q is %s, want float32 [%d %d]", w.schema.Name, shapeText(p), w.bags, w.schema.Width)
		}
		if sum == nil {
			sum = p
		} else {
			sum = sum.Add(p)
		}
	}
	if sum == nil {
		sum = tensor.Zeros(w.bags, w.schema.Width)
	}
	return sum, nil
}
