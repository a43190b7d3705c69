// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"time"
	"weak"

	"github.com/cohort-ml/cohort/rpc/internal/rref"
)

// RRef is a reference to a value in another process, or in this one: its owner.
// [Method.Remote] leaves the result of a method at the peer and returns a reference to it.
// [NewRRef] makes a reference to a value of this process. References travel in the
// arguments and results of calls, wherever a *RRef stands in them, so third agents can get
// them.
//
// The owner keeps the value while any agent has a reference. [RRef.Release] ends a
// reference; one that the program has forgotten is released when the garbage collector
// finds it. References of a process that has died, or has been silent for the lease
// ([WithLease]), do not count any more. Using a reference that has ended returns an
// [*Error]: [KindReleased] after Release, [KindGone] if the owner does not have the value
// any more.
//
// Several goroutines may call the methods. The zero RRef cannot be used.
type RRef[T any] struct{ s *refState }

// refState is the part of a reference that does not depend on its type, and that the
// garbage collector does not watch.
type refState struct {
	k      *keeper
	handle rref.Handle
	owner  *Peer
	text   string // the value's type
	site   site
	from   *Peer     // the agent that passed it to this one, nil if it was made here
	value  *refValue // at the owner
	// started is closed when the call that makes the value has been answered; nil
	// if it is not this agent's.
	started chan struct{}
	// reachable says whether the program can still use it.
	reachable func() bool

	// guarded by k.mu
	released bool
	lost     rref.Reason // 0: it is not
	err      error       // of the call
}

func newRRef[T any](s *refState) *RRef[T] {
	r := &RRef[T]{}
	r.become(s)
	return r
}

// become gives a new reference its state.
func (r *RRef[T]) become(s *refState) {
	s.text = typeText(reflect.TypeFor[T]())
	w := weak.Make(r)
	s.reachable = func() bool { return w.Value() != nil }
	r.s = s
	runtime.AddCleanup(r, (*refState).release, s)
}

// site is where a reference was made: the caller and the callers of the caller, because
// packages above this one make references for their callers.
type site [3]uintptr

// callSite returns where the function that called its caller was called.
func callSite() (s site) {
	runtime.Callers(3, s[:])
	return s
}

// String returns the first line that is not of these packages.
func (s site) String() string {
	first := ""
	frames := runtime.CallersFrames(s[:])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		line := fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		ours := strings.HasPrefix(f.Function, packagePath) && !strings.HasSuffix(f.File, "_test.go")
		switch {
		case f.Function == "" || strings.HasPrefix(f.Function, "runtime."): // the end of the stack
		case !ours:
			return line
		case first == "":
			first = line
		}
	}
	return first
}

// packagePath begins the names of the functions of this package and of those above it.
var packagePath = reflect.TypeFor[Agent]().PkgPath()

func (s *refState) madeAt() string {
	if s.from != nil {
		return "which came from " + s.from.name
	}
	return "made at " + s.site.String()
}

// NewRRef returns a reference to a value of this process.
func NewRRef[T any](a *Agent, value T) *RRef[T] {
	k := a.refs
	s := &refState{k: k, owner: a.self, site: callSite()}
	k.act(func(now time.Time) {
		s.handle = k.m.Own(now)
		s.value = k.valueOf(s.handle.Ref)
	})
	s.value.settle(value, nil)
	return newRRef[T](s)
}

// Owner returns the agent that has the value.
func (r *RRef[T]) Owner() *Peer { return r.s.owner }

// OwnerName returns the name of the agent that has the value.
func (r *RRef[T]) OwnerName() string { return r.s.owner.name }

// IsOwner says whether the value is in this process.
func (r *RRef[T]) IsOwner() bool { return r.s.handle.N == 0 }

func (r *RRef[T]) String() string {
	return fmt.Sprintf("reference to a %s at %s", r.s.text, r.s.owner.name)
}

// Release ends the reference. Calls that use it should have returned. A second Release
// does nothing.
func (r *RRef[T]) Release() { r.s.release() }

func (s *refState) release() {
	k := s.k
	k.act(func(now time.Time) {
		if s.released {
			return
		}
		s.released = true
		delete(k.states, s.handle)
		if s.lost == 0 && s.err == nil {
			k.m.Release(now, s.handle)
		}
	})
}

// usable says why what cannot use the reference, nil if it can.
func (s *refState) usable(what string) error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return s.trouble(what)
}

// trouble says why what cannot use the reference, nil if it can. The lock is held.
func (s *refState) trouble(what string) error {
	switch {
	case s.k.closed:
		return errorf(KindClosed, what, s.owner, "%w", errClosed)
	case s.released:
		return errorf(KindReleased, what, s.owner, "the reference to a %s, %s, has been released", s.text, s.madeAt())
	case s.err != nil:
		return s.err
	case s.lost != 0:
		return errorf(KindGone, what, s.owner, "the reference to a %s, %s, is lost: %v", s.text, s.madeAt(), s.lost)
	}
	return nil
}

// ToHere returns the value. At the owner it returns the value itself, elsewhere it fetches
// a copy. It waits until the value has been made. A value with unexported fields cannot be
// copied, unless they have the tag `rpc:"-"`; the values of a [Maker] are often of this
// kind.
func (r *RRef[T]) ToHere(ctx context.Context) (value T, err error) {
	defer runtime.KeepAlive(r)
	s := r.s
	if err := s.usable("ToHere"); err != nil {
		return value, err
	}
	if s.value != nil { // which has the call's error, too
		ctx, cancel := s.k.limit(ctx)
		defer cancel()
		v, err := s.value.wait(ctx)
		if err != nil {
			return value, errorf(kindOf(err, KindTimeout), "ToHere", s.owner, "%w", err)
		}
		return valueAs[T](v)
	}
	m, err := fetchMethod[T](s.k)
	if err != nil {
		return value, errorf(KindTypes, "ToHere", s.owner, "%w", err)
	}
	watched, stop := s.watch(ctx)
	value, err = m.Call(watched, s.owner, fetchArgs{keyOf(s.handle.Ref), s.text})
	stop()
	return value, s.explain(ctx, "ToHere", err)
}

// limit gives a context without a deadline the agent's time limit.
func (k *keeper) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || k.agent.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, k.agent.timeout)
}

// kindOf returns the kind of an error, or another if it has none.
func kindOf(err error, other Kind) Kind {
	if k := KindOf(err); k != "" {
		return k
	}
	return other
}

// watch returns a context that ends when the call that makes the value fails. Without it,
// the owner would wait for a call that does not come.
func (s *refState) watch(ctx context.Context) (context.Context, func()) {
	if s.started == nil {
		return ctx, func() {}
	}
	select {
	case <-s.started:
		return ctx, func() {}
	default:
	}
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		select {
		case <-s.started:
			s.k.mu.Lock()
			err := s.err
			s.k.mu.Unlock()
			if err != nil {
				cancel(err)
			}
		case <-over:
		}
	}()
	return ctx, func() { close(over); cancel(nil) }
}

// explain returns the error of a reference, if it has one, in place of the error of a call
// that used it. It waits for the call that makes the value, whose error may be on its way.
func (s *refState) explain(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if s.started != nil {
		select {
		case <-s.started:
		case <-ctx.Done():
		}
	}
	return s.better(what, err)
}

// better is explain without the wait.
func (s *refState) better(what string, err error) error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	if s.err != nil || s.lost != 0 {
		return s.trouble(what)
	}
	return err
}

// LocalValue returns the value at its owner: itself, not a copy. In another process, and
// while the value has not been made, it returns an error.
func (r *RRef[T]) LocalValue() (value T, err error) {
	defer runtime.KeepAlive(r)
	s := r.s
	if err := s.usable("LocalValue"); err != nil {
		return value, err
	}
	if s.value == nil {
		return value, errorf(KindApplication, "LocalValue", s.owner, "the value is there and not here; ToHere fetches a copy")
	}
	select {
	case <-s.value.done:
	default:
		return value, errorf(KindTimeout, "LocalValue", s.owner, "the value has not been made yet; ToHere waits for it")
	}
	if s.value.err != nil {
		return value, s.value.err
	}
	return valueAs[T](s.value.value)
}

// Remote calls the method at a peer, leaves the result there, and returns a reference to
// it. It does not wait for the call; using the reference returns the call's error. ctx
// bounds the call, not the life of the result.
func (m *Method[A, R]) Remote(ctx context.Context, p *Peer, in A) (*RRef[R], error) {
	return remote[A, R, R](ctx, m, p, in, nil, callSite())
}

// remote calls a method and leaves its result, a T, at the peer. If the method is called
// on a value, on is the reference to that value.
func remote[A, R, T any](ctx context.Context, m *Method[A, R], p *Peer, in A, on *refState, made site) (*RRef[T], error) {
	if p == nil {
		return nil, errNoPeer(m.name)
	}
	k := p.agent.refs
	s := &refState{k: k, owner: p, site: made, started: make(chan struct{})}
	if p.err != nil {
		return nil, p.unreachable(m.name, p.err)
	}
	var extra []byte
	k.act(func(now time.Time) {
		if p == p.agent.self {
			s.handle = k.m.Own(now)
			s.value = k.valueOf(s.handle.Ref)
		} else {
			s.handle = k.m.Remote(now, nodeOf(p))
			k.states[s.handle] = s
		}
		extra = encodeNumber(s.handle.Ref.N)
	})
	r := newRRef[T](s)
	kept := keptMethod(k, m)
	stop := func() {}
	if on != nil {
		ctx, stop = on.watch(ctx)
	}
	f := kept.async(ctx, p, in, callExtras{rref: extra})
	if on != nil {
		f.explained(func(err error) error { return on.better(m.name, err) })
	}
	if err := f.failed(); err != nil {
		stop()
		s.answered(0, err)
		return nil, err
	}
	f.onDone(func() {
		instance, err := f.result()
		stop()
		s.answered(instance, err)
	})
	return r, nil
}

// keptMethod returns the method for callers that leave the result where it is: its answer
// is a number in place of the result.
func keptMethod[A, R any](k *keeper, m *Method[A, R]) *Method[A, uint64] {
	if kept, ok := k.kept.Load(m); ok {
		return kept.(*Method[A, uint64])
	}
	kept := &Method[A, uint64]{methodInfo: m.methodInfo, args: m.args, result: planOf[uint64]("response", m.name)}
	kept.argPool.New = func() any { return new(A) }
	kept.resultPool.New = func() any { return new(uint64) }
	k.kept.Store(m, kept)
	return kept
}

// answered takes the answer to the call that makes the value.
func (s *refState) answered(instance uint64, err error) {
	if s.value != nil {
		s.value.settle(nil, err) // if the call has not
		close(s.started)
		return
	}
	s.k.act(func(now time.Time) {
		if err == nil {
			s.k.m.Confirm(now, s.handle, instance)
			return
		}
		s.err = err
		delete(s.k.states, s.handle)
		if !s.released {
			s.k.m.Fail(now, s.handle)
		}
	})
	close(s.started)
}

// failed returns the error of a call that has failed already, other than by an
// answer.
func (f *Future[R]) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != futureDone {
		return nil
	}
	return f.err
}
