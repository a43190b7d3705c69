// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/rpc"
)

// Kind is the sort of failure of an [Error]. Kinds travel as their text.
type Kind string

// KindTable: there is no such table, or it has another schema.
const KindTable Kind = "table"

// KindSettings: the client and the server disagree about the job, the number of servers or
// workers, or the consistency.
const KindSettings Kind = "settings"

// KindKeys: keys that the server does not have, that are out of range, or in no order.
const KindKeys Kind = "keys"

// KindValues: a gradient of another shape or dtype, or with values that are not finite.
const KindValues Kind = "values"

// KindWaiting: the deadline passed while a request waited for workers.
const KindWaiting Kind = "waiting"

// KindOrder: a push with a number or a step that does not follow the last one.
const KindOrder Kind = "order"

// KindHistory: a server came back without what it had acknowledged.
const KindHistory Kind = "history"

// KindStorage: the server could not keep a push, such as on a full disk. It was not applied.
const KindStorage Kind = "storage"

// KindUnreachable: a server could not be reached before the deadline.
const KindUnreachable Kind = "unreachable"

// Error is a failure of parameter servers. Fields that do not matter are empty, and numbers
// -1.
type Error struct {
	Kind   Kind
	Table  string
	Server int   // its number
	Worker int   // the worker that is to blame or is waited for
	Step   int64 // of the request
	// First and Last are the keys that it concerns.
	First, Last int64
	HasKeys     bool
	Msg         string

	cause error
}

// errorf makes an error that concerns nothing yet.
func errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Server: -1, Worker: -1, Step: -1, Msg: err.Error(), cause: errors.Unwrap(err)}
}

func (e *Error) of(table string) *Error { e.Table = table; return e }

func (e *Error) by(worker int, step int64) *Error { e.Worker, e.Step = worker, step; return e }

func (e *Error) keys(first, last int64) *Error {
	e.First, e.Last, e.HasKeys = first, last, true
	return e
}

func (e *Error) Error() string {
	var where []string
	add := func(is bool, format string, args ...any) {
		if is {
			where = append(where, fmt.Sprintf(format, args...))
		}
	}
	add(e.Server >= 0, "server %d", e.Server)
	add(e.Table != "", "table %q", e.Table)
	add(e.HasKeys && e.First == e.Last, "key %d", e.First)
	add(e.HasKeys && e.First != e.Last, "keys %d to %d", e.First, e.Last)
	add(e.Worker >= 0, "worker %d", e.Worker)
	add(e.Step >= 0, "step %d", e.Step)
	at := strings.Join(where, ", ")
	if at != "" {
		at += ": "
	}
	return "ps: " + at + e.Msg
}

// Unwrap returns the cause, if the failure is one of this process.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether target is an *Error that has only a kind, and that kind is e's:
// errors.Is(err, &ps.Error{Kind: ps.KindWaiting}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && t.Table == "" && t.Msg == ""
}

// KindOf returns the kind of the first [Error] in an error's chain, "" if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// errorCode is under which an [Error] travels.
const errorCode = "cohort.ps"

// know lets errors of this package come through an agent.
func know(a *rpc.Agent) error { return rpc.KnowErrorType[*Error](a, errorCode) }
