// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Hook averages the buckets of a [DDP] in place of its own all-reduce: PyTorch's
// communication hook. See [WithHook].
//
// A hook runs on a goroutine of its own while the backward pass goes on. The buckets
// come one after the other, in the same order on every rank, so a hook needs no lock.
type Hook interface {
	// Average returns the mean of the bucket over the ranks of group, in the shape and
	// dtype of bucket.Buffer. It may write to the buffer and return it. It waits for its
	// collectives. group is for the hook alone, and every rank makes the same calls.
	//
	// An error of one rank ends the pass of all ranks.
	Average(ctx context.Context, group *dist.Group, bucket *GradBucket) (*tensor.Tensor, error)
	// String names the hook and all of its settings: ranks with different names do not
	// train together.
	String() string
}

// GradBucket is a run of gradients of one dtype that travel together.
type GradBucket struct {
	Index  int              // of the bucket: 0 comes first, and has the last layers
	Buffer *tensor.Tensor   // [elements]: what this rank has computed, back to back, not divided by the ranks
	Grads  []*tensor.Tensor // views of Buffer, one for each parameter
	Params []*nn.Parameter  // in the order of their gradients
	IsLast bool             // no bucket of the pass follows
}

// HookFunc is a [Hook] of a program: a function that returns the mean of a bucket. Its
// name is that of the function.
type HookFunc func(ctx context.Context, group *dist.Group, bucket *GradBucket) (*tensor.Tensor, error)

// Average calls the function.
func (f HookFunc) Average(ctx context.Context, group *dist.Group, bucket *GradBucket) (*tensor.Tensor, error) {
	return f(ctx, group, bucket)
}

func (f HookFunc) check() error {
	if f == nil {
		return errors.New("WithHook got a HookFunc that is nil: give it a function, or leave the option out")
	}
	return nil
}

func (f HookFunc) String() string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// WithHook has a hook average the gradients. All ranks give hooks of the same name: NewDDP
// fails on every rank where they differ. Each DDP takes a hook of its own: hooks
// have state. NewDDP fails on every rank for a hook of this package that another DDP has, also one
// of another rank of this process.
//
// A hook gets what the rank has computed, not divided by the number of ranks, as PyTorch's
// does. So gradients of passes under NoSync are whole too. How many ranks have used each
// parameter travels in one more small all-reduce at the end of a pass. Gradients by rows of
// sparse parameters go past the hook.
//
// With [WithPyTorch] the hook is one that both sides know: [BF16Hook] or [FP16Hook].
func WithHook(h Hook) DDPOption {
	return func(o *ddpOptions) { o.hook, o.hookSaid = h, true }
}

// hookOwner is in hooks that have state, which is of the buckets of one DDP.
type hookOwner struct{ taken atomic.Bool }

func (h *hookOwner) take() bool { return h.taken.CompareAndSwap(false, true) }
func (h *hookOwner) free()      { h.taken.Store(false) }

// takeHook has a hook belong to the DDP that is made. free gives it back, if making the DDP fails.
func (o *ddpOptions) takeHook() (free func()) {
	h, has := o.hook.(interface {
		take() bool
		free()
	})
	if !has {
		return func() {}
	}
	if o.hookOwned = !h.take(); o.hookOwned {
		return func() {}
	}
	return h.free
}

// checkHook fails for a hook that cannot run on any rank.
func (o *ddpOptions) checkHook() error {
	if o.hookSaid && o.hook == nil {
		return errors.New("WithHook got no hook: give it one, or leave the option out")
	}
	if o.hookOwned {
		return fmt.Errorf("WithHook got a hook %s that another DDP has: hooks have state, so make one for each DDP", o.hook)
	}
	if h, is := o.hook.(interface{ check() error }); is {
		return h.check()
	}
	return nil
}

// HookError says that the hook of a rank did not return what it should.
type HookError struct {
	Rank   int    // in the group of the DDP
	Hook   string // its name
	Bucket int    // the index of the bucket
	Err    error
}

func (e *HookError) Error() string {
	return fmt.Sprintf("hook %s on rank %d, bucket %d: %v", e.Hook, e.Rank, e.Bucket, e.Err)
}

func (e *HookError) Unwrap() error { return e.Err }

// hooks run the hook of a DDP on its buckets.
type hooks struct {
	hook  Hook
	group *dist.Group // of all ranks; nothing else communicates in it
	last  *hooked     // of the present pass
}

// newHooks makes the group of a hook. All ranks call it.
func newHooks(ctx context.Context, group *dist.Group, h Hook) (*hooks, error) {
	all := make([]int, group.Size())
	for i := range all {
		all[i] = i
	}
	own, err := group.NewGroup(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("ddp: the group of the hook %s: %w", h, err)
	}
	return &hooks{hook: h, group: own}, nil
}

// hooked is work under way behind the backward pass.
type hooked struct {
	ctx   context.Context // of what runs
	group *dist.Group     // of the hook
	left  error           // if it does not end by a return
	done  chan struct{}
	err   error // once done

	before  *hooked // after which it starts; nil for none
	endless bool    // it, or what was before it, is not waited for any more
}

// start runs fn after what was started before. Once one has failed, the others do not run. left is
// the error if fn ends its goroutine.
func (h *hooks) start(ctx context.Context, left error, fn func() error) *hooked {
	before, w := h.last, &hooked{ctx: ctx, group: h.group, left: left, done: make(chan struct{}), before: h.last}
	h.last = w
	go func() {
		defer close(w.done)
		if before != nil {
			if <-before.done; before.err != nil {
				w.err = before.err
				return
			}
		}
		w.err = left
		defer func() {
			if w.err != nil {
				h.group.Fail(w.err) // the others may be waiting in what follows
			}
		}()
		w.err = fn()
	}()
	return w
}

var errLeft = errors.New("it has ended its goroutine (runtime.Goexit), want a return")

// average starts the hook on a bucket.
func (h *hooks) average(ctx context.Context, b *GradBucket) *hooked {
	named := func(err error) error {
		return &HookError{Rank: h.group.Rank(), Hook: h.hook.String(), Bucket: b.Index, Err: err}
	}
	return h.start(ctx, named(errLeft), func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				if e, is := v.(*tensor.Error); is {
					err = e
				} else {
					err = fmt.Errorf("it panicked%s: %v", panicPlace(), v)
				}
			}
			if err != nil {
				err = named(err)
			}
		}()
		mean, err := h.hook.Average(ctx, h.group, b)
		if err != nil {
			return err
		}
		return b.take(mean)
	})
}

// panicPlace says where the panic began that a deferred function has recovered: " at FILE:LINE".
func panicPlace() string {
	pcs := make([]uintptr, 32)
	frames, panicked := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)]), false
	for {
		f, more := frames.Next()
		switch in := strings.HasPrefix(f.Function, "runtime."); {
		case in:
			panicked = true
		case panicked:
			return fmt.Sprintf(" at %s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

// countUses adds up how many ranks have used each parameter, once the hook has run on all buckets.
func (h *hooks) countUses(ctx context.Context, counts *tensor.Tensor) *hooked {
	return h.start(ctx, errLeft, func() error { return h.group.AllReduce(ctx, counts, dist.Sum) })
}

// take writes to the buffer what a hook has returned.
func (b *GradBucket) take(mean *tensor.Tensor) error {
	switch {
	case mean == nil:
		return errors.New("it returned no tensor: return the mean of the bucket, or the bucket's Buffer")
	case mean == b.Buffer:
		return nil
	case mean.DType() != b.Buffer.DType() || !slices.Equal(mean.Shape(), b.Buffer.Shape()):
		return fmt.Errorf("it returned a %v of shape %v, the bucket is a %v of shape %v: return the mean in the bucket's shape and dtype",
			mean.DType(), mean.Shape(), b.Buffer.DType(), b.Buffer.Shape())
	}
	b.Buffer.CopyFrom(mean)
	return nil
}

// wait returns when the work has ended. Once the context of the pass has ended, a hook that
// does not mind it is not waited for. Nor is one that takes longer than a collective may: the error
// of this rank then names it, and the other ranks name this rank. What would start after it is not
// waited for either.
func (w *hooked) wait(ctx context.Context) error {
	if w.before != nil && w.before.endless {
		w.endless = true
		return errors.New("the hook of a bucket before has not returned")
	}
	limit := w.group.Timeout() + abandonTime
	endless := time.NewTimer(limit)
	defer endless.Stop()
	select {
	case <-endless.C:
		w.endless = true
		err := fmt.Errorf("it has not returned for %v, longer than the group's timeout for a collective: have it return, and mind its context", limit)
		if e := (*HookError)(nil); errors.As(w.left, &e) {
			err = &HookError{Rank: e.Rank, Hook: e.Hook, Bucket: e.Bucket, Err: err}
		}
		w.group.Fail(err)
		return err
	case <-w.done:
		return w.err
	case <-ctx.Done():
	case <-w.ctx.Done():
		late := time.NewTimer(abandonTime)
		defer late.Stop()
		select {
		case <-w.done:
			return w.err
		case <-late.C:
		}
	}
	return errors.New("the hook has not returned, although the pass has ended: have it mind its context")
}

func (w *hooked) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}
