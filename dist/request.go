// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/tensor"
)

// request is an operation as this rank asks for it. Each operation has a
// function that makes its request from the arguments, which it checks, and two
// methods: one runs the request, the other starts it. An error found while it
// is made has sent nothing and marked no tensor as written.
//
// Requests of calls that have ended are used again, with the memory of their
// lists.
type request struct {
	g       *Group
	ctx     context.Context
	call    operation.Call
	in, out operand
	inPlace bool // out is in, of which then is said:
	loads   bool // what it holds before matters
	stores  bool // it holds the result
	held    []held
	parts   []int // what call.Parts is made in
	recvs   []int // likewise call.Recvs
	whole   *Work // the batch that this is a part of, or nil
	ticket  flight.Ticket
	number  int    // among the calls of a rank on a host of disttest
	device  string // the device that has the tensors; "" for the memory of the host
	// ended is the end of a call that goes on, on that device, when it has returned; or nil
	ended backend.Completion
	// instead moves the call in place of the backend's methods; or nil
	instead backend.Do
	err     error // the first thing that is wrong with the arguments
}

// held is a tensor that a request has borrowed from: it must not be collected
// before the request has ended.
type held struct {
	tensor  *tensor.Tensor
	written bool
}

func (g *Group) newRequest(ctx context.Context, op operation.Op) *request {
	r, _ := g.requests.Get().(*request)
	if r == nil {
		r = &request{}
	}
	r.g, r.ctx, r.call.Op = g, ctx, op
	return r
}

// release gives back a request that nobody uses any more.
func (r *request) release() {
	g := r.g
	clear(r.held)
	clear(r.in.pieces)
	clear(r.out.pieces)
	*r = request{held: r.held[:0], parts: r.parts[:0], recvs: r.recvs[:0],
		in: operand{pieces: r.in.pieces[:0]}, out: operand{pieces: r.out.pieces[:0]}}
	g.requests.Put(r)
}

// refuse notes what is wrong with an argument, unless something else is.
func (r *request) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("dist: %v of group %q on rank %d: %w", r.call.Op, r.g.name, r.g.rank, fmt.Errorf(format, args...))
	}
}

// of says of what type the elements are and how many of them this rank's count is.
func (r *request) of(d operation.DType, count int) { r.call.DType, r.call.Count = d, count }

// rooted checks the rank that an operation begins or ends at.
func (r *request) rooted(what string, root int) {
	r.call.Root = root
	if err := r.g.checkRank(what, root); err != nil {
		r.refuse("%w", err)
	}
}

func (g *Group) checkRank(what string, rank int) error {
	if rank < 0 || rank >= g.size {
		return fmt.Errorf("%s is rank %d of a group of %d", what, rank, g.size)
	}
	return nil
}

// reduces says how the elements of the source are reduced, which their type
// must allow.
func (r *request) reduces(op ReduceOp) {
	r.call.Reduce = op
	r.of(r.in.data.DType, r.in.data.NumElems)
	if r.err == nil {
		if err := r.g.reducible(op, r.call.DType); err != nil {
			r.refuse("%w", err)
		}
	}
}

// reducible returns a [ReduceError] if elements of a type are not reduced so.
func (g *Group) reducible(op ReduceOp, d operation.DType) error {
	_, err := collective.ReductionFor(op, d, g.size)
	return err
}

// sameTypes checks that the destination takes what the source has.
func (r *request) sameTypes() {
	if r.err == nil && r.out.data.DType != r.in.data.DType {
		r.refuse("the destination has elements of type %v, the source of %v", r.out.data.DType, r.in.data.DType)
	}
}

// sized checks the size of a tensor that has a part for every rank.
func (r *request) sized(what string, numElems, part int) {
	if want := r.g.size * part; numElems != want {
		r.refuse("%s has %d elements, want %d: %d for each of %d ranks", what, numElems, want, part, r.g.size)
	}
}

// oneEach checks that a list has a tensor for every rank.
func (r *request) oneEach(what string, n int) {
	if n != r.g.size {
		r.refuse("the number of %ss is %d, want one for each of %d ranks", what, n, r.g.size)
	}
}

// none checks that a list is not there on a rank that has no use for it.
func (r *request) none(what string, n, root int) {
	if n > 0 {
		r.refuse("there are %d %ss on a rank other than rank %d", n, what, root)
	}
}

// own checks that the tensor for this rank in a list has the size of the
// other argument.
func (r *request) own(what string, numElems int, list string, ts []*tensor.Tensor) {
	if r.err == nil && ts[r.g.rank].NumElems() != numElems {
		r.refuse("%s has %d elements; %s %d, of this rank, has %d", what, numElems, list, r.g.rank, ts[r.g.rank].NumElems())
	}
}

// before returns how many elements a list has for the ranks before this one.
func (r *request) before(ts []*tensor.Tensor) int {
	n := 0
	if r.err == nil {
		for _, t := range ts[:r.g.rank] {
			n += t.NumElems()
		}
	}
	return n
}

// uneven reports whether the tensors of a list differ in size, and notes
// their sizes.
func (r *request) uneven(ts []*tensor.Tensor) bool {
	if r.err != nil {
		return false
	}
	differ := false
	for _, t := range ts {
		r.parts = append(r.parts, t.NumElems())
		differ = differ || r.parts[0] != t.NumElems()
	}
	return differ
}

// partsOf makes the call one of parts that all ranks know: the sizes of a list.
func (r *request) partsOf(ts []*tensor.Tensor) {
	if r.uneven(ts) {
		r.call.SetParts(r.parts, r.g.rank)
	} else if r.err == nil {
		r.call.Count = r.parts[0]
	}
}

// interleave makes an operand of large tensors, each of which has a part for
// every rank, one of runs for every rank that have all tensors' parts.
func (r *request) interleave(o *operand, what string, large []*tensor.Tensor, part string, small []*tensor.Tensor) {
	if len(large) != len(small) {
		r.refuse("the number of %ss is %d, that of %ss %d", what, len(large), part, len(small))
	}
	if r.err != nil {
		return
	}
	sum := 0
	for i, t := range small {
		if have, want := large[i].NumElems(), r.g.size*t.NumElems(); have != want {
			r.refuse("%s %d has %d elements, want %d: %d for each of %d ranks", what, i, have, want, t.NumElems(), r.g.size)
			return
		}
		sum += t.NumElems()
	}
	if len(large) == 1 {
		return
	}
	for rank := range r.g.size {
		at := rank * sum
		for i, t := range small {
			p := o.pieces[i]
			n := t.NumElems()
			p.lo, p.hi, p.at = rank*n, (rank+1)*n, at
			o.stage(p)
			at += n
		}
	}
	kept := copy(o.pieces, o.pieces[len(large):])
	clear(o.pieces[kept:])
	o.pieces = o.pieces[:kept]
	o.data.Buffer = mem.Buffer{}
}

// call makes a request's call, if its arguments are right, and waits for its end. When
// nothing else is under way it runs on the caller's goroutine: handing a call over costs
// more than a small one takes.
func (g *Group) call(r *request) error {
	if r.device != "" {
		r.inDevice()
	}
	err := r.err
	if err == nil {
		err = g.callInTurn(r)
	}
	r.release()
	return err
}

// callAsync starts a request's call, if its arguments are right.
func (g *Group) callAsync(r *request) *Work {
	if r.device != "" {
		r.inDevice()
	}
	if r.err == nil {
		return g.start(r)
	}
	w := failedWork(r.err)
	r.release()
	return w
}

// callInTurn has a call admitted, waits for its turn in its lane, and performs it.
func (g *Group) callInTurn(r *request) error {
	g.count(r)
	l, held, err := g.admit(r)
	switch {
	case err != nil:
		return err
	case held != nil:
		g.waitStill(held)
		return held.err
	case l == nil:
		return g.perform(r)
	}
	l.mu.Lock()
	l.seq++
	r.call.Seq = l.seq
	r.ticket = g.log.Called(&r.call, !l.busy)
	if l.busy {
		w := newWork(r)
		w.bound()
		l.queue = append(l.queue, w)
		l.mu.Unlock()
		g.waitStill(w)
		return w.err
	}
	l.busy = true
	l.mu.Unlock()
	err = g.perform(r)
	l.release()
	return err
}

// start has a call admitted and put into its lane, and returns at once. The request is given
// back when its work has ended.
func (g *Group) start(r *request) *Work {
	r.call.Background = true
	g.count(r)
	l, held, err := g.admit(r)
	switch {
	case err != nil:
		if r.whole != nil {
			r.whole.partEnded(err)
		}
		r.release()
		return failedWork(err)
	case held != nil:
		return held
	}
	w := newWork(r)
	if l == nil {
		go w.run()
	} else {
		l.add(w)
	}
	return w
}

// count counts a call where calls are counted: as it is called, for asynchronous ones
// begin in no order.
func (g *Group) count(r *request) {
	if g.host != nil {
		r.number = g.host.Called()
	}
}

// admit lets a call begin, if it can: it counts it as running and returns the lane that
// it takes; none for a receive that the gate holds back or that takes from any.
func (g *Group) admit(r *request) (l *lane, held *Work, err error) {
	if err := r.ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("dist: %v of group %q on rank %d was not begun: %w", r.call, g.name, g.rank, ctxerr.Of(r.ctx))
	}
	if g.rules != nil {
		if err := g.rules.Admits(&r.call); err != nil {
			return nil, nil, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, fmt.Errorf("dist: %v of group %q on rank %d: %w", r.call, g.name, g.rank, ErrClosed)
	}
	g.running++
	for _, h := range r.held {
		if h.written {
			h.tensor.MarkWritten()
		}
	}
	switch r.call.Op {
	case operation.Send:
		return g.pairLane(r.call.Root, true), nil, nil
	case operation.Recv:
		if !g.gate.pass(r) {
			r.ticket = g.log.Called(&r.call, false) // its number comes later
			return nil, g.gate.hold(r), nil
		}
		if r.call.Root == operation.AnyRank {
			r.ticket = g.log.Called(&r.call, true)
			return nil, nil, nil
		}
		return g.pairLane(r.call.Root, false), nil, nil
	}
	return &g.collectives, nil, nil
}

// pairLane returns the lane of the messages to or from a peer. The group is locked.
func (g *Group) pairLane(peer int, send bool) *lane {
	key := pair{peer, send}
	l := g.pairs[key]
	if l == nil {
		l = &lane{}
		g.pairs[key] = l
	}
	return l
}

// ended counts a request as no longer running and lets those go on that have
// waited for it.
func (g *Group) ended(r *request, fromAny bool) {
	g.mu.Lock()
	g.running--
	if r.call.Op == operation.Recv {
		g.gate.leave(g, fromAny)
	}
	if g.running == 0 && g.closed {
		g.noneRunning.Broadcast()
	}
	g.mu.Unlock()
}

// perform runs a call to its end, and has it recorded.
func (g *Group) perform(r *request) error {
	r.ticket = g.log.Begun(r.ticket)
	var err error
	if g.host == nil {
		err = g.move(r)
	} else { // between what the host does before and after
		err = g.host.Around(r.number, g.name, r.call, func() error { return g.move(r) })
	}
	if err != nil {
		err = g.sited(err, &r.call)
	}
	at := g.log.Ended(r.ticket, &r.call, err)
	if err != nil {
		g.recordFailure(err)
	} else {
		g.tell(&r.call, at)
	}
	return err
}

// move moves a call's data: into staging memory where it needs that, by the communicator, and
// out of there.
func (g *Group) move(r *request) error {
	fromAny := r.call.Op == operation.Recv && r.call.Root == operation.AnyRank
	defer g.ended(r, fromAny)
	staged, err := r.stage()
	if err != nil {
		err = fmt.Errorf("dist: %v of group %q on rank %d: %w", r.call, g.name, g.rank, err)
		g.failAll(err) // the others count on this rank
		return err
	}
	in, out := r.in.data, r.out.data
	if r.inPlace && r.stores || r.call.Op == operation.Broadcast {
		out = in
	}
	switch {
	case r.device != "":
		if err = g.enqueue(r, in, out); err != nil {
			g.failAll(err) // a device's wire may not tell the others why
		}
	case r.instead != nil:
		err = r.instead(r.call, in, out)
	case g.comm == nil:
		err = collective.Alone(&r.call, in, out)
	case fromAny:
		err = g.recvAny(r, in)
	case r.call.Op == operation.Send:
		err = g.comm.Send(r.ctx, r.call, in)
	case r.call.Op == operation.Recv:
		err = g.comm.Recv(r.ctx, r.call, in)
	default:
		err = g.comm.Collective(r.ctx, r.call, in, out)
		g.tellUnmarked(r.call.Seq)
	}
	r.unstage(staged, err == nil)
	runtime.KeepAlive(r.held)
	return err
}

// enqueue moves a call's data on the device that has it. The call may go on when it returns.
func (g *Group) enqueue(r *request, in, out collective.Data) error {
	comm := g.commFor(r.device)
	stream, ok := comm.(backend.Streamer)
	switch {
	case ok:
	case r.call.Op == operation.Send:
		return comm.Send(r.ctx, r.call, in)
	case r.call.Op == operation.Recv:
		return comm.Recv(r.ctx, r.call, in)
	default:
		return comm.Collective(r.ctx, r.call, in, out)
	}
	ended, err := stream.Enqueue(r.ctx, r.call, in, out, slices.Clone(r.held))
	if err != nil {
		return err
	}
	if r.call.Background && r.whole == nil { // whoever waits for the work waits for that too
		r.ended = ended
		return nil
	}
	return ended.Wait(r.ctx)
}
