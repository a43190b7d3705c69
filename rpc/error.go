// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
const KindTooLarge Kind = "too large"

// KindVersion is a peer that speaks another version of the protocol.
const KindVersion Kind = "version"

// KindNameTaken is a name or rank that another agent of the job has.
const KindNameTaken Kind = "name taken"

// KindMembers is a job of which two agents do not say the same: its size, or the
// list of WithPeers.
const KindMembers Kind = "members differ"

// KindUnknownPeer is a name or rank that no agent of the job has.
const KindUnknownPeer Kind = "unknown peer"

// KindTimeout is a call that was not answered in its time.
const KindTimeout Kind = "timeout"

// KindCanceled is a call that its caller, or the end of its agent, canceled.
const KindCanceled Kind = "canceled"

// KindUnreachable is a peer to which there is no connection, and none can be made.
const KindUnreachable Kind = "unreachable"

// KindLost is a connection that ended before the answer; the method may have run.
const KindLost Kind = "connection lost"

// KindClosed is an agent that has been closed, here or there.
const KindClosed Kind = "closed"

// KindBusy is a peer with too many calls in its queue, or that wait there for later
// answers.
const KindBusy Kind = "busy"

// KindReleased is a reference that was used after its release.
const KindReleased Kind = "released"

// KindProtocol is a peer that sent what the protocol does not allow.
const KindProtocol Kind = "protocol"

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
var errClosed = errors.New("the agent has been closed")

// known is an error that both sides of a call know by a code.
type known struct {
	code string
	// match returns what of an error of the handler travels, and whether there
	// is anything of it; nil value: only the code.
	match func(err error) (value any, ok bool)
	// revive makes the error again from what has travelled.
	revive func(d *decoding) error
}

// builtinErrors are the errors that every agent knows.
func builtinErrors() []known {
	return []known{sentinel("context.Canceled", context.Canceled), sentinel("context.DeadlineExceeded", context.DeadlineExceeded)}
}

func sentinel(code string, err error) known {
	return known{code: code,
		match:  func(e error) (any, bool) { return nil, errors.Is(e, err) },
		revive: func(*decoding) error { return err }}
}
