// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".

// ProcessEnd is how a process ended, from the agent that launched it.
type ProcessEnd struct {
	Known  bool
	Signal string // name of the signal that ended it, "" if it exited
	Code   int    // exit code
}

// DeathError returns the error about a rank whose process has ended.
func DeathError(group string, m fault.Member, o ProcessEnd) *fault.RankError {
	e := fault.NewRankError(group, m, fault.ErrDied)
	e.Signal = o.Signal
	if o.Known && o.Signal == "" {
		e.Cause = fmt.Errorf("%w with exit code %d", fault.ErrDied, o.Code)
	}
	return e
}

// SilenceError returns the error about a rank that has fallen silent.
func SilenceError(group string, m fault.Member, text string) *fault.RankError {
	return fault.NewRankError(group, m, &fault.SilentError{Text: text})
}

// faultError returns the error of a call that ends because of a fault. c is nil when no call
// is under way. All errors of calls about dead, silent and departed ranks are made here.
func (cfg *Config) faultError(c *operation.Call, rank int, kind uint32, text string) error {
	if kind == kindMismatch {
		if m, err := parseMismatch(text, len(cfg.Members)); err == nil {
			return m.error(cfg.Group, cfg.Rank)
		}
		kind, text = kindFailed, "told of a mismatch that cannot be read"
	}
	m := fault.Member{Rank: rank}
	if rank >= 0 && rank < len(cfg.Members) {
		m = cfg.Members[rank]
	}
	e := fault.NewRankError(cfg.Group, m, nil)
	switch kind {
	case kindDied:
		o := ProcessEnd{Known: text != "", Signal: text}
		if !o.Known && cfg.ProcessEnd != nil {
			o = cfg.ProcessEnd(rank)
		}
		e = DeathError(cfg.Group, m, o)
	case kindLeft:
		if rank == cfg.Rank {
			return cfg.closed(c)
		}
		e.Cause = fault.ErrLeft
	case kindSilent:
		e.Cause = &fault.SilentError{Text: text, Here: rank == cfg.Rank}
	case kindTimeout:
		e.Cause = cfg.timeoutError(c, m, text)
		if late, ok := e.Cause.(*fault.TimeoutError); ok {
			return late
		}
	default:
		e.Cause = errors.New(text)
	}
	if c != nil {
		e.Op, e.Seq = c.Op.String(), c.Seq
	}
	return e
}

// closed returns the error of a call on a group that this rank has closed, before the call
// or during it.
func (cfg *Config) closed(c *operation.Call) error {
	if c == nil {
		return fmt.Errorf("dist: group %q on rank %d: %w", cfg.Group, cfg.Rank, fault.ErrClosed)
	}
	return fmt.Errorf("dist: %s of group %q on rank %d: %w", fault.Numbered(c.Op.String(), c.Seq), cfg.Group, cfg.Rank, fault.ErrClosed)
}

// faultOf returns what to tell the other ranks of an error on this one.
func (cfg *Config) faultOf(err error) (rank int, kind uint32, text string) {
	var re *fault.RankError
	var mismatch *fault.MismatchError
	var late *fault.TimeoutError
	switch {
	case err == fault.ErrClosed: // by this rank, with operations under way
		return cfg.Rank, kindLeft, ""
	case errors.As(err, &mismatch) && mismatch.Group == cfg.Group:
		return cfg.Rank, kindMismatch, newMismatch(mismatch).encode()
	case errors.As(err, &late):
		if text, ok := cfg.timeoutText(late); ok {
			return cfg.Rank, kindTimeout, text
		}
		return cfg.Rank, kindFailed, err.Error()
	case !errors.As(err, &re):
		return cfg.Rank, kindFailed, err.Error()
	// The culprit is another rank: the others are told about that one.
	case errors.Is(re.Cause, fault.ErrDied):
		return re.Rank, kindDied, re.Signal
	case errors.Is(re.Cause, fault.ErrLeft):
		return re.Rank, kindLeft, ""
	}
	var silent *fault.SilentError
	if errors.As(re.Cause, &silent) {
		return re.Rank, kindSilent, silent.Text
	}
	return re.Rank, kindFailed, re.Cause.Error()
}

// owned returns a copy of an error that other calls have too, so that a call can add to it
// for which ranks it waited.
func owned(err error) error {
	switch e := err.(type) {
	case *fault.TimeoutError:
		own := *e
		own.Missing = slices.Clone(e.Missing)
		return &own
	case *fault.RankError:
		own := *e
		return &own
	}
	return err
}

// again returns the error of an earlier call as the error of a later one.
func (cfg *Config) again(err error, c *operation.Call) error {
	if err == fault.ErrClosed {
		return cfg.closed(c)
	}
	if re, ok := err.(*fault.RankError); ok {
		later := *re
		later.Op, later.Seq = c.Op.String(), c.Seq
		return &later
	}
	return fmt.Errorf("dist: %s: the group has failed before: %w", fault.Numbered(c.Op.String(), c.Seq), owned(err))
}

// absent returns the error about a rank to which this one could not connect. If ctx has
// ended, it is a time-out that names the rank.
func (cfg *Config) absent(ctx context.Context, rank int, err error) error {
	if ctx.Err() == nil {
		var closed *closedError
		if errors.As(err, &closed) {
			if about, kind, text, ok := closed.fault(len(cfg.Members)); ok && kind != kindMismatch {
				return cfg.found(about, kind, text)
			}
			e := fault.NewRankError(cfg.Group, cfg.Members[rank], closed.cause())
			e.Op = "init"
			return e
		}
		if kind, ended := cfg.ended(rank, err); ended {
			return cfg.found(rank, kind, "")
		}
		return err
	}
	var other *fault.RankError
	if cause := context.Cause(ctx); errors.As(cause, &other) {
		return cause
	}
	return &fault.TimeoutError{Group: cfg.Group, Op: "init", Missing: []fault.Member{cfg.Members[rank]}, Cause: ctxerr.Of(ctx)}
}

// Kinds of faults. A fault is a rank, a kind and a text. Their numbers travel between ranks.
const (
	kindDied     = iota + 1 // the process has ended; the text is the signal, if known
	kindLeft                // the rank has closed the group
	kindFailed              // the rank gave up; the text is why
	kindMismatch            // the text is two calls that do not fit, encoded
	kindSilent              // nothing was heard of the rank; the text says for how long
	kindTimeout             // the rank ran out of time; the text is the ranks that it waited for, encoded
)

// firstError is the error that ended the group for this rank. All later calls repeat it.
type firstError struct{ err error }
