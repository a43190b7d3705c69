// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// A checkpoint of a run can have the rows of the servers, as if they lay in the process. Its
// workers read them by Lookup; a run that goes on calls Begin and puts them back by Insert.

// beginArgs wants a server that has no rows, and whose workers' next step is Step.
type beginArgs struct {
	Life uint64
	Step int64
}

// insertArgs gives rows to a server: Keys int64 [n], Values float32 [n, width], States
// float32 [n, length of a row's state].
type insertArgs struct {
	Life                 uint64
	Table                string
	Keys, Values, States *tensor.Tensor
}

// lookupArgs asks for rows with their states, as the step of a worker sees them.
type lookupArgs struct {
	Life   uint64
	Worker int
	Step   int64
	Table  string
	Keys   *tensor.Tensor
}

type lookupReply struct{ Values, States *tensor.Tensor }

// beginning is the entry of Begin, insertion that of Insert.
type beginning struct{ step int64 }

type insertion struct {
	table          int
	keys           []int64
	values, states []float32
}

func (b *beginning) encode() []byte {
	return binary.LittleEndian.AppendUint64([]byte{entryBegin}, uint64(b.step))
}

func (e *insertion) encode() []byte {
	b := append(make([]byte, 0, 17+8*len(e.keys)+4*len(e.values)+4*len(e.states)), entryInsert)
	for _, n := range []int{e.table, len(e.keys), len(e.values), len(e.states)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = appendInt64s(b, e.keys)
	b = appendFloat32s(b, e.values)
	return appendFloat32s(b, e.states)
}

func (r *entryReader) insertion() *insertion {
	e := &insertion{table: int(r.uint32())}
	keys, values, states := int(r.uint32()), int(r.uint32()), int(r.uint32())
	e.keys, e.values, e.states = r.int64s(keys), r.float32s(values), r.float32s(states)
	return e
}

// applyBeginning empties the tables. What a worker has pushed for steps to come is dropped.
func (s *state) applyBeginning(e *beginning) error {
	for i, t := range s.tables {
		t.Clear(rows.Mark{LSN: s.lsn})
		s.rates[i] = 0
	}
	clear(s.pending)
	s.batch, s.ahead, s.step, s.applied = nil, 0, uint64(e.step), e.step
	for w := range s.next {
		s.next[w], s.left[w] = e.step, false
	}
	return nil
}

func (s *state) applyInsertion(e *insertion) error {
	if e.table >= len(s.tables) {
		return fmt.Errorf("rows for table %d of %d", e.table, len(s.tables))
	}
	err := s.tables[e.table].Insert(rows.Mark{LSN: s.lsn, Step: s.step}, e.keys, e.values, e.states)
	if err != nil {
		return errorf(KindStorage, "%w", err).of(s.set.Tables[e.table].Name)
	}
	return nil
}

// begin answers Begin.
func (s *Server) begin(ctx context.Context, in beginArgs) (struct{}, error) {
	if no := s.isMet(in.Life); no != nil {
		return struct{}{}, no
	}
	if in.Step < 0 || in.Step >= maxSteps {
		return struct{}{}, s.errorf(KindOrder, "step %d to begin with: want 0 to %d", in.Step, maxSteps-1)
	}
	return struct{}{}, s.do(ctx, &request{worker: -1, other: &beginning{in.Step}})
}

// insert answers Insert.
func (s *Server) insert(ctx context.Context, in insertArgs) (struct{}, error) {
	if no := s.isMet(in.Life); no != nil {
		return struct{}{}, no
	}
	e, no := s.checkInsertion(&in)
	if no != nil {
		return struct{}{}, no
	}
	return struct{}{}, s.do(ctx, &request{worker: -1, other: e})
}

func (s *Server) checkInsertion(in *insertArgs) (*insertion, *Error) {
	v := s.view.Load()
	n, keys, no := s.checkLookup(v, in.Table, in.Keys)
	if no != nil {
		return nil, no
	}
	e := &insertion{table: n, keys: append([]int64(nil), keys...)}
	for _, p := range []struct {
		what  string
		t     *tensor.Tensor
		width int
		to    *[]float32
	}{{"values", in.Values, v.set.Tables[n].Width, &e.values}, {"states", in.States, v.tables[n].StateLen(), &e.states}} {
		if p.t == nil || p.t.DType() != tensor.Float32 || p.t.NumDims() != 2 || p.t.Dim(0) != len(keys) || p.t.Dim(1) != p.width {
			return nil, s.errorf(KindValues, "the %s are %s: want float32 [%d, %d]", p.what, shapeText(p.t), len(keys), p.width).of(in.Table)
		}
		*p.to = p.t.Float32s()
		if i := firstBad(*p.to); i >= 0 {
			k := keys[i/p.width]
			return nil, s.errorf(KindValues, "number %d of the %s is %v: want finite numbers", i%p.width, p.what, (*p.to)[i]).of(in.Table).keys(k, k)
		}
	}
	return e, nil
}

// checkLookup returns the number of a table and keys of it.
func (s *Server) checkLookup(v *view, table string, keys *tensor.Tensor) (int, []int64, *Error) {
	n, ok := v.number[table]
	if !ok {
		return 0, nil, s.errorf(KindTable, "there is no such table; there are %s", tableNames(v.set.Tables)).of(table)
	}
	list, err := int64sOf(keys, "keys")
	if err != nil {
		return 0, nil, s.errorf(KindKeys, "%w", err).of(table)
	}
	return n, list, s.checkKeys(&v.set.Tables[n], list)
}

// lookup answers Lookup.
func (s *Server) lookup(ctx context.Context, in lookupArgs) (out lookupReply, err error) {
	if no := s.isMet(in.Life); no != nil {
		return out, no
	}
	v, err := s.await(ctx, in.Worker, in.Step)
	if err != nil {
		return out, err
	}
	done, no := s.reads()
	if no != nil {
		return out, no
	}
	defer done()
	n, keys, no := s.checkLookup(v, in.Table, in.Keys)
	if no != nil {
		return out, no.by(in.Worker, in.Step)
	}
	out.Values, out.States = tensor.Empty(tensor.Float32, len(keys), v.set.Tables[n].Width), tensor.Empty(tensor.Float32, len(keys), v.tables[n].StateLen())
	values, err := float32sOf(out.Values)
	if err != nil {
		return out, err
	}
	states, err := float32sOf(out.States)
	if err == nil {
		err = v.tables[n].Lookup(values, states, keys)
	}
	if err != nil {
		return out, s.errorf(KindStorage, "%w", err).of(in.Table)
	}
	return out, nil
}

// Begin takes all rows out of all tables, and makes step the next one of all workers. One
// worker calls it, while no other one pushes; then it and the others call [Client.Insert] for
// the rows that they bring, and [Client.Rejoin].
func (c *Client) Begin(ctx context.Context, step int64) error {
	ctx, cancel := c.limit(ctx)
	defer cancel()
	return c.each(func(r *remote) error {
		_, err := call(ctx, r, beginMethod, func(life uint64) beginArgs { return beginArgs{life, step} })
		return err
	})
}

// Rejoin makes the worker go on at the step that the servers expect of it, as Dial does.
func (c *Client) Rejoin(ctx context.Context) error {
	if err := c.Flush(ctx); err != nil {
		return err
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	err := c.each(func(r *remote) error {
		r.forget()
		return r.retry(ctx, func() error { return r.ensure(ctx) })
	})
	if err == nil {
		c.rejoined()
	}
	return err
}

// rejoined takes over the step that the servers expect of the worker.
func (c *Client) rejoined() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range c.remotes {
		if r.first = r.next; i == 0 || r.first < c.step {
			c.step = r.first
		}
	}
}

// transferBytes is about how much goes to or comes from a server in one request of Insert or
// Lookup.
const transferBytes = 16 << 20

// StateLen returns the number of float32 of the state of a table's rows: what [Client.Lookup]
// has beside their values.
func (c *Client) StateLen(table string) (int, error) {
	t, err := c.schema(table)
	if err != nil {
		return 0, err
	}
	return t.StateLen(), nil
}

// Insert gives rows to the servers, with the states of their optimizer: values are float32
// [keys, width], states float32 [keys, StateLen]. The rows take the place of those that there
// are. An Insert that is repeated changes nothing.
func (c *Client) Insert(ctx context.Context, table string, keys []int64, values, states *tensor.Tensor) error {
	return c.transfer(ctx, table, keys, values, states, func(ctx context.Context, r *remote, keys *tensor.Tensor, values, states []float32, width, length int) error {
		n := keys.Dim(0)
		_, err := call(ctx, r, insertMethod, func(life uint64) insertArgs {
			return insertArgs{life, table, keys, tensor.FromFloat32(values, n, width), tensor.FromFloat32(states, n, length)}
		})
		return err
	})
}

// Lookup reads the values of keys, float32 [keys, width], and the states of their rows,
// float32 [keys, StateLen], into tensors of these shapes. It sees what a pull of the worker's
// step sees. A key without a row has what its row would begin with.
func (c *Client) Lookup(ctx context.Context, table string, keys []int64, values, states *tensor.Tensor) error {
	step := c.StepNumber()
	return c.transfer(ctx, table, keys, values, states, func(ctx context.Context, r *remote, keys *tensor.Tensor, values, states []float32, width, length int) error {
		reply, err := call(ctx, r, lookupMethod, func(life uint64) lookupArgs {
			return lookupArgs{life, c.worker, step, table, keys}
		})
		if err != nil {
			return err
		}
		for _, p := range []struct {
			t     *tensor.Tensor
			to    []float32
			width int
		}{{reply.Values, values, width}, {reply.States, states, length}} {
			if p.t == nil || p.t.DType() != tensor.Float32 || p.t.NumDims() != 2 || p.t.Dim(0) != keys.Dim(0) || p.t.Dim(1) != p.width {
				return r.unreachable("its answer for table %q is %s, want float32 [%d, %d]", table, shapeText(p.t), keys.Dim(0), p.width)
			}
			copy(p.to, p.t.Float32s())
		}
		return nil
	})
}

// transfer calls one with the keys of each server, some at a time, and with their values and
// states, which it takes from the tensors before and puts back after.
func (c *Client) transfer(ctx context.Context, table string, keys []int64, values, states *tensor.Tensor,
	one func(ctx context.Context, r *remote, keys *tensor.Tensor, values, states []float32, width, length int) error) error {
	t, err := c.schema(table)
	if err != nil {
		return err
	}
	width, length := t.Width, t.StateLen()
	whole := make([][]float32, 2)
	for i, p := range []struct {
		what  string
		t     *tensor.Tensor
		width int
	}{{"values", values, width}, {"states", states, length}} {
		if p.t == nil || p.t.DType() != tensor.Float32 || p.t.NumDims() != 2 || p.t.Dim(0) != len(keys) || p.t.Dim(1) != p.width {
			return errorf(KindValues, "the %s are %s: want float32 [%d, %d]", p.what, shapeText(p.t), len(keys), p.width).of(table)
		}
		if whole[i], err = float32sOf(p.t); err != nil {
			return errorf(KindValues, "the %s: %w", p.what, err).of(table)
		}
	}
	if t.Rows > 0 {
		for _, k := range keys {
			if k < 0 || k >= int64(t.Rows) {
				return errorf(KindKeys, "the table has the keys 0 to %d", t.Rows-1).of(table).keys(k, k)
			}
		}
	}
	most := max(1, transferBytes/(8+4*width+4*length))
	s := c.routing.split(keys, t.Rows)
	return c.each(func(r *remote) error {
		own, at := s.keys[r.index], s.at[r.index]
		for lo := 0; lo < len(own); lo += most {
			part := own[lo:min(lo+most, len(own))]
			place := func(i int) int { // of a key among all
				if at == nil {
					return lo + i
				}
				return int(at[lo+i])
			}
			v, st := make([]float32, len(part)*width), make([]float32, len(part)*length)
			for i := range part {
				copy(v[i*width:(i+1)*width], whole[0][place(i)*width:])
				copy(st[i*length:(i+1)*length], whole[1][place(i)*length:])
			}
			ctx, cancel := c.limit(ctx)
			err := one(ctx, r, tensor.FromInt64(part), v, st, width, length)
			cancel()
			if err != nil {
				return err
			}
			for i := range part {
				copy(whole[0][place(i)*width:], v[i*width:(i+1)*width])
				copy(whole[1][place(i)*length:], st[i*length:(i+1)*length])
			}
		}
		return nil
	})
}

// Discard drops the gradients that were added for the step.
func (c *Client) Discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.grads)
}

// Staleness is how old the rows of a worker's pulls were: how many of the steps before that of
// the pull the slowest worker had not pushed.
type Staleness struct {
	Pulls uint64 // of one step at all servers
	Sum   uint64 // of the steps of all pulls
	Most  int64
}

// Mean returns the mean number of steps of a pull.
func (s Staleness) Mean() float64 { return float64(s.Sum) / float64(max(1, s.Pulls)) }

// Staleness returns that of the client's pulls since it was made.
func (c *Client) Staleness() Staleness {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stale
}

// noteBehind counts the age of the rows of a pull: that of the server with the oldest ones.
func (c *Client) noteBehind(replies []pullReply) {
	behind := int64(0)
	for _, r := range replies {
		behind = max(behind, r.Behind)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale.Pulls++
	c.stale.Sum += uint64(behind)
	c.stale.Most = max(c.stale.Most, behind)
}

// behind returns how many steps before a step the slowest worker has not pushed.
func (v *view) behind(step int64) int64 {
	out := int64(0)
	for w, n := range v.next {
		if !v.left[w] {
			out = max(out, step-n)
		}
	}
	return out
}
