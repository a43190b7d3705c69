// SPDX-License-Identifier: Apache-2.0

// Package hook lets package autograd see the tensors of calls as they leave and
// arrive, without package rpc knowing what is done with them.
//
// An agent has at most one [Hook], which its context carries. It is called for every message of a call, with
// the tensors in the order in which the arguments or the result refer to them, and
// for those that go out on a stream. It
// may put others into their places: what a receiver puts there is what the handler
// or the caller sees. What it leaves in Extra of a message that is sent is in Extra
// at the receiver, if that has a hook.
//
// # Caveats
//
// A hook is called by many goroutines at once: the caller's, the handler's, and
// for the answer of an asynchronous call the one that waits for it. It must not
// keep the Message.
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
	// Lost hears that a connection with a member has ended, as rpc.Agent.OnPeerLost
	// does. It must not wait. A later life of the member may have been heard before.
	Lost(who Peer, err error)
}

// Peer is the other side. Rank is -1 for a client that is no member of the job.
type Peer struct {
	Name string
	Rank int
	// Life is another one for each process that has the name, one after the other.
	Life uint64
}

// Message is what is said of one.
type Message struct {
	Method  string
	Tensors []*tensor.Tensor
	Extra   []byte
	Failed  bool
	// Running says of a call of SendReply that nobody waits for it any more, and that
	// its handler is not through: it may use what ReceiveCall gave it.
	Running bool
}
