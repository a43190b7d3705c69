// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// Kind says what sort of failure an [Error] is. Kinds travel as their text.
type Kind string

// Each kind is a declaration of its own: of a block, go doc shows one line.

// KindApplication is an error that the handler returned, or one of what a call
// belongs to here, such as a context of autograd that has been closed.
const KindApplication Kind = "application"

// KindPanic is a handler that panicked.
const KindPanic Kind = "panic"

// KindUnknownMethod is a method that the peer does not serve.
const KindUnknownMethod Kind = "unknown method"

// KindTypes is a method whose types differ between the two sides, or a value
// that cannot be read as one.
const KindTypes Kind = "types"

// KindTooLarge is a message over the receiver's limit.
const KindTooLarge Kind = wire.KindTooLarge

// KindVersion is a peer that speaks another version of the protocol.
const KindVersion Kind = wire.KindVersion

// KindNameTaken is a name or rank that another agent of the job has.
const KindNameTaken Kind = wire.KindNameTaken

// KindMembers is a job of which two agents do not say the same: its size, or the
// list of WithPeers.
const KindMembers Kind = wire.KindMembers

// KindUnknownPeer is a name or rank that no agent of the job has.
const KindUnknownPeer Kind = wire.KindUnknownPeer

// KindTimeout is a call that was not answered in its time.
const KindTimeout Kind = wire.KindTimeout

// KindCanceled is a call that its caller, or the end of its agent, canceled.
const KindCanceled Kind = wire.KindCanceled

// KindUnreachable is a peer to which there is no connection, and none can be made.
const KindUnreachable Kind = wire.KindUnreachable

// KindLost is a connection that ended before the answer; the method may have run.
const KindLost Kind = wire.KindLost

// KindClosed is an agent that has been closed, here or there.
const KindClosed Kind = wire.KindClosed

// KindBusy is a peer with too many calls in its queue, or that wait there for later
// answers.
const KindBusy Kind = "busy"

// KindReleased is a reference that was used after its release.
const KindReleased Kind = "released"

// KindProtocol is a peer that sent what the protocol does not allow.
const KindProtocol Kind = wire.KindProtocol

// Error is a failed call. It names the method and the peer; errors.Is and
// errors.As look through it at what the handler returned, as far as that is known
// on both sides: see [WithError] and [WithErrorType].
type Error struct {
	Method string // empty where it concerns no method
	Peer   string // the peer's name, empty where it concerns none
	Rank   int    // the peer's rank, -1 if it has none
	Kind   Kind
	Msg    string
	// Stack says where in the peer's process a failure came from: lines such as
	// "worker1: math.Add served by main.add (main.go:12)", for a panic with the
	// goroutine's stack, the innermost peer first where calls went on from one to another.
	Stack string
	// Code is that of [WithError] or [WithErrorType], if the error has one.
	Code string

	err error // what Unwrap returns
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("rpc: ")
	if e.Method != "" {
		b.WriteString(e.Method + " ")
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, "at %s", e.Peer)
		if e.Rank >= 0 {
			fmt.Fprintf(&b, " (rank %d)", e.Rank)
		}
		b.WriteString(": ")
	}
	if e.Kind != KindApplication {
		b.WriteString(string(e.Kind) + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// Unwrap returns the cause: a context's error, or an error of the handler that
// is known here.
func (e *Error) Unwrap() error { return e.err }

// Is says whether target is an *Error that asks for a kind alone, as in
// errors.Is(err, &rpc.Error{Kind: rpc.KindTimeout}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && t.Method == "" && t.Peer == "" && t.Msg == ""
}

// KindOf returns the kind of the first [Error] in an error's chain, "" if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// errorf makes an error about a method and a peer.
func errorf(kind Kind, method string, p *Peer, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Method: method, Rank: -1, Kind: kind, Msg: err.Error(), err: errors.Unwrap(err)}
	if p != nil {
		e.Peer, e.Rank = p.name, p.rank
	}
	return e
}

// errNoPeer is a call to the nil peer.
func errNoPeer(method string) error {
	return errorf(KindUnknownPeer, method, nil, "the peer is nil; Agent.Peer returns peers")
}

// errClosed is the cause of what ends because the agent does.
var errClosed = link.ErrClosed

// ownError makes an error of this package of one that a connection has. Others stay what
// they are, and so do the words around it.
func ownError(err error) error {
	var e *wire.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &Error{Peer: e.Peer, Rank: e.Rank, Kind: Kind(e.Kind), Msg: e.Msg, err: e.Err}
	if err == error(e) {
		return out
	}
	return &reworded{err.Error(), out}
}

// reworded is an error in other words.
type reworded struct {
	text string
	err  error
}

func (r *reworded) Error() string { return r.text }
func (r *reworded) Unwrap() error { return r.err }

// callError is the error of a call that a connection has ended, or that could not begin.
func callError(err error, method string, p *Peer) error {
	e, ok := err.(*wire.Error)
	if !ok {
		return err
	}
	return &Error{Method: method, Peer: p.name, Rank: p.rank, Kind: Kind(e.Kind), Msg: e.Msg, err: e.Err}
}

// timeoutError is the error of a call that was not answered in time.
func timeoutError(method string, p *Peer, ctx context.Context, after time.Duration) error {
	return callError(link.Late(ctx, after), method, p)
}

// known is an error that both sides of a call know by a code.
type known struct {
	code string
	// match returns what of an error of the handler travels, and whether there
	// is anything of it; nil value: only the code.
	match func(err error) (value any, ok bool)
	// revive makes the error again from what has travelled.
	revive func(r *wire.Received) error
}

// builtinErrors are the errors that every agent knows.
func builtinErrors() []known {
	return []known{sentinel("context.Canceled", context.Canceled), sentinel("context.DeadlineExceeded", context.DeadlineExceeded)}
}

func sentinel(code string, err error) known {
	return known{code: code,
		match:  func(e error) (any, bool) { return nil, errors.Is(e, err) },
		revive: func(*wire.Received) error { return err }}
}
