// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
)

// Error is a failure of a connection or of a message. Package rpc adds the method and the
// peer, and shows it as an error of its own.
type Error struct {
	Kind string // one of the kinds below, or what a peer sent
	Msg  string
	Err  error // the cause, nil if there is none
	// Peer and Rank are the agent that the error is about, where a connection knows it.
	Peer string
	Rank int
}

// The kinds of errors that connections have. They travel as their text.
const (
	KindProtocol    = "protocol"
	KindTooLarge    = "too large"
	KindVersion     = "version"
	KindNameTaken   = "name taken"
	KindMembers     = "members differ"
	KindUnknownPeer = "unknown peer"
	KindTimeout     = "timeout"
	KindCanceled    = "canceled"
	KindUnreachable = "unreachable"
	KindLost        = "connection lost"
	KindClosed      = "closed"
)

func (e *Error) Error() string { return "rpc: " + e.Kind + ": " + e.Msg }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an error of a kind. Its cause is the error that the format wraps.
func Errorf(kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Msg: err.Error(), Err: errors.Unwrap(err), Rank: -1}
}

// Protocolf makes the error of a peer that sent what the protocol does not allow. It ends
// the connection.
func Protocolf(format string, args ...any) error { return Errorf(KindProtocol, format, args...) }

// ErrTooLarge is the cause of an error about a message that is over its receiver's limit.
var ErrTooLarge = errors.New("over the receiver's limit")
