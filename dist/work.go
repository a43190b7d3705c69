// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Work is an operation under way. Its tensors belong to it until it has ended.
type Work struct {
	g    *Group // nil for work that ended before it began
	done chan struct{}
	err  error // valid when done is closed
	// ended is the end on a device of what has ended on the host; nil where nothing goes on
	// there. It is valid when done is closed.
	ended *deviceEnd
	call  operation.Call
	req   *request // nil for the work of several requests
	src   int      // valid when done is closed
	// stood counts the time for which somebody waits for a collective.
	stood *atomic.Int64

	unbound func() bool    // ends what bound began; nil where nothing was
	late    sync.WaitGroup // until the end of the wait for a turn has been told

	whole *Work // of which this is a part, or nil
	mu    sync.Mutex
	num   int // of parts, of a whole
	parts int // that have not ended
}

// deviceEnd is the end of a call on a device, and the call as it was numbered.
type deviceEnd struct {
	backend.Completion
	call operation.Call
}

func newWork(r *request) *Work {
	w := &Work{g: r.g, done: make(chan struct{}), call: r.call, req: r, src: operation.AnyRank, whole: r.whole}
	if op := r.call.Op; op != operation.Send && op != operation.Recv {
		w.stood = &r.g.progress.stood
	}
	return w
}

// Wait returns when the operation has ended, with its error, or when ctx
// ends. Of an operation on a device's memory it returns when what uses the tensor next, on
// that device, finds the result. The end of this ctx leaves the operation running: it is the
// context given to the operation itself that ends it.
func (w *Work) Wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.waitDevice(ctx)
	default:
	}
	if w.g != nil {
		begun := time.Now()
		defer func() {
			took, now := time.Since(begun), w.g.channel.Now()
			if w.stood != nil {
				w.stood.Add(int64(took))
			}
			w.g.channel.Stood(now-took, now)
		}()
	}
	select {
	case <-w.done:
		return w.waitDevice(ctx)
	case <-ctx.Done():
		what := w.call.String()
		if w.num > 0 {
			what = fmt.Sprintf("a batch of %d messages", w.num)
		}
		return fmt.Errorf("dist: waiting for %s of group %q on rank %d: %w", what, w.g.name, w.g.rank, ctxerr.Of(ctx))
	}
}

// waitDevice returns the error of work that has ended on the host, and waits for what goes
// on on a device.
func (w *Work) waitDevice(ctx context.Context) error {
	if w.err != nil || w.ended == nil {
		return w.err
	}
	if err := w.ended.Wait(ctx); err != nil {
		return w.g.sited(err, &w.ended.call)
	}
	return nil
}

// Done is closed when the operation has ended on the host.
func (w *Work) Done() <-chan struct{} { return w.done }

// Source returns the rank whose message a receive took, once the work has
// ended without error: what one learns of [Group.RecvAnyAsync]. Of other works
// it is -1.
func (w *Work) Source() int {
	select {
	case <-w.done:
		return w.src
	default:
		return operation.AnyRank
	}
}

// failedWork is work that ended before it began.
func failedWork(err error) *Work {
	w := &Work{done: make(chan struct{}), err: err, src: operation.AnyRank}
	close(w.done)
	return w
}

// run runs the request to its end.
func (w *Work) run() {
	r := w.req
	w.req = nil
	if w.unbound != nil && !w.unbound() {
		w.late.Wait() // the group must not be closed meanwhile
	}
	err := r.g.perform(r)
	if r.call.Op == operation.Recv && err == nil {
		w.src = r.call.Root
	}
	if r.ended != nil {
		w.ended = &deviceEnd{r.ended, r.call}
	}
	if r.call.Background { // else its caller waits and gives it back
		r.release()
	}
	w.end(err)
}

// bound has the end of the request's context end the wait for its turn, which
// fails the group: what is under way may take as long as the group's limit.
func (w *Work) bound() {
	g, ctx, op, seq := w.req.g, w.req.ctx, w.req.call.Op, w.req.call.Seq
	if w.unbound != nil || g.comm == nil || ctx.Done() == nil {
		return
	}
	w.late.Add(1)
	w.unbound = context.AfterFunc(ctx, func() {
		defer w.late.Done()
		g.failAll(&TimeoutError{Group: g.name, Op: op.String(), Seq: seq, Cause: context.Cause(ctx)})
	})
}

func (w *Work) end(err error) {
	w.err = err
	whole := w.whole
	close(w.done)
	if whole != nil {
		whole.partEnded(err)
	}
}

// newWhole returns work that ends when parts have ended, with the error of the
// first that failed.
func newWhole(g *Group, parts int) *Work {
	w := &Work{g: g, done: make(chan struct{}), num: parts, parts: parts, src: operation.AnyRank}
	if parts == 0 {
		close(w.done)
	}
	return w
}

func (w *Work) partEnded(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	if w.parts--; w.parts == 0 {
		close(w.done)
	}
}
