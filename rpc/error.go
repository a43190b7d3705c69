// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// Kind is the sort of failure of an [Error]. Kinds travel as their text.
type Kind string

// Each kind is a declaration of its own: of a block, go doc shows one line.

// KindApplication: the handler returned an error, or what the call belongs to in this
// process failed, such as a context of package autograd that has been closed.
const KindApplication Kind = "application"

// KindPanic: the handler panicked.
const KindPanic Kind = "panic"

// KindUnknownMethod: the peer does not serve the method.
const KindUnknownMethod Kind = "unknown method"

// KindTypes: the two sides have different types for the method, or a value cannot be
// decoded.
const KindTypes Kind = "types"

// KindTooLarge: a message is larger than its receiver allows.
const KindTooLarge Kind = wire.KindTooLarge

// KindVersion: the peer speaks another version of the protocol.
const KindVersion Kind = wire.KindVersion

// KindNameTaken: another agent of the job has the name or the rank.
const KindNameTaken Kind = wire.KindNameTaken

// KindMembers: two agents disagree about the job: its size, or the list of WithPeers.
const KindMembers Kind = wire.KindMembers

// KindUnknownPeer: no agent of the job has the name or the rank.
const KindUnknownPeer Kind = wire.KindUnknownPeer

// KindTimeout: the call was not answered in time.
const KindTimeout Kind = wire.KindTimeout

// KindCanceled: the caller has canceled the call, or its agent has ended.
const KindCanceled Kind = wire.KindCanceled

// KindUnreachable: there is no connection to the peer, and none can be made.
const KindUnreachable Kind = wire.KindUnreachable

// KindLost: the connection ended before the answer came. The method may have run.
const KindLost Kind = wire.KindLost

// KindClosed: the agent has been closed, here or at the peer.
const KindClosed Kind = wire.KindClosed

// KindBusy: too many calls wait at the peer, for their turn or for later answers.
const KindBusy Kind = "busy"

// KindReleased: the reference was used after its release.
const KindReleased Kind = "released"

// KindProtocol: the peer sent what the protocol does not allow.
const KindProtocol Kind = wire.KindProtocol

// Error is a failed call. It names the method and the peer. errors.Is and errors.As find
// the handler's error in it, if both sides know that error: see [WithError] and
// [WithErrorType].
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

// Unwrap returns the cause: the error of a context, or an error of the handler that this
// agent knows.
func (e *Error) Unwrap() error { return e.err }

// Is says whether target is an *Error that has only a kind, and that kind is e's:
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

// knownErrors are the errors that an agent knows.
type knownErrors struct {
	mu   sync.RWMutex
	list []known // is not written to
}

func (k *knownErrors) all() []known {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.list
}

func (k *knownErrors) add(one known) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.ContainsFunc(k.list, func(have known) bool { return have.code == one.code }) {
		k.list = append(slices.Clip(k.list), one)
	}
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
