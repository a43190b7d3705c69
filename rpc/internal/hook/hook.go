// SPDX-License-Identifier: Apache-2.0

// Package hook shows the tensors of calls to package autograd, without package rpc knowing
// what autograd does with them.
//
// An agent has at most one [Hook], which its context carries. The hook is called for every
// message of a call, and for the messages that are sent on a stream. A Message has the
// tensors in the order in which the arguments or the result refer to them. The hook may
// replace tensors: at the receiver, the handler or the caller gets the replacements. What
// the sender's hook puts into Extra is in Extra at the receiver, if the receiver has a hook.
//
// # Caveats
//
// Many goroutines call a hook at once: those of callers, those of handlers, and for the
// answer of an asynchronous call the goroutine that waits for it. A hook must not keep the
// Message.
package hook

import (
	"context"

	"github.com/cohort-ml/cohort/tensor"
)

type key struct{}

// NewContext returns a context with a hook. An agent whose base context has one
// (rpc.WithBaseContext) uses it.
func NewContext(ctx context.Context, h Hook) context.Context { return context.WithValue(ctx, key{}, h) }

// FromContext returns the hook of a context, nil if it has none.
func FromContext(ctx context.Context) Hook {
	h, _ := ctx.Value(key{}).(Hook)
	return h
}

// Hook sees messages. An error fails the call.
type Hook interface {
	// SendCall sees the arguments; ctx is the caller's.
	SendCall(ctx context.Context, to Peer, m *Message) error
	// ReceiveCall sees them at the other side, before they are decoded. The
	// context that it returns, made from ctx, is the handler's.
	ReceiveCall(ctx context.Context, from Peer, m *Message) (context.Context, error)
	// SendReply sees the result; ctx is the handler's. When the handler failed,
	// m.Failed is true and there are no tensors.
	SendReply(ctx context.Context, to Peer, m *Message) error
	// ReceiveReply sees it at the caller, whose context ctx is.
	ReceiveReply(ctx context.Context, from Peer, m *Message) error
	// SendItem sees a message of a stream before it leaves, at either end. What it
	// changes does not count.
	SendItem(m *Message) error
	// Lost says that a connection with a member has ended; see rpc.Agent.OnPeerLost. It
	// must not wait. A later life of the member may have called before.
	Lost(who Peer, err error)
}

// Peer is the other side. Rank is -1 for a client that is no member of the job.
type Peer struct {
	Name string
	Rank int
	// Life tells the processes apart that have the name one after the other.
	Life uint64
}

// Message is a message as a hook sees it.
type Message struct {
	Method  string
	Tensors []*tensor.Tensor
	Extra   []byte
	Failed  bool
	// Running says in SendReply that the caller does not wait any more, and that the
	// handler has not ended: it may still use what ReceiveCall gave it.
	Running bool
}
