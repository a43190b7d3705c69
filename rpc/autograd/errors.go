// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"errors"
	"fmt"
)

// ErrReleased is the error of using a context that has been closed, on this process or on
// the process that made it, or whose backward pass has failed.
var ErrReleased = errors.New("the context has been released")

// ErrUnreached is the error of a backward pass in mode [Fast] if a value that was sent
// gets no gradient.
var ErrUnreached = errors.New("the loss does not depend on it, and mode Fast assumes that it does: use Smart")

// ErrNoPass is the error of a call in which gradients would be lost silently. The context
// of the call is neither the carrier of a pass nor that of an evaluation, and the
// arguments have a history or the handler computes from parameters.
var ErrNoPass = errors.New("no gradient would come back through the call: make it with the carrier of Context.Pass as its context; " +
	"if no gradient is wanted, make it with the carrier of nn.Evaluation and with detached tensors (Detach)")

// Error is a failure of a context.
type Error struct {
	Op      string // "backward", "step", "call"
	Context uint64 // the context's id
	Worker  string // where it failed
	Rank    int    // the worker's
	Err     error
}

func (e *Error) Error() string {
	return fmt.Sprintf("autograd: %s in context %s: on %s (rank %d): %v", e.Op, contextName(e.Context), e.Worker, e.Rank, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// contextName writes an id as the rank that made the context, and the count in it.
func contextName(id uint64) string {
	return fmt.Sprintf("%d/%d", rankOf(id), id&(1<<counterBits-1))
}
