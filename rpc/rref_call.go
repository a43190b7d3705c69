// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"reflect"
	"runtime"
)

// Maker is a method whose result stays where it is made: a Go value of any type,
// such as an environment with open files, which no other process could have.
// [Maker.Remote] returns a reference; methods on the value are [OnMethod]s. RRef.ToHere
// copies only values that travel whole.
type Maker[A, T any] struct{ method *Method[A, struct{}] }

// NewMaker declares a method that makes values of type T from an A.
func NewMaker[A, T any](name string) *Maker[A, T] {
	m := NewMethod[A, struct{}](name)
	m.methodInfo = newMethodInfo(name, m.args.Text+" -> rref<"+typeText(reflect.TypeFor[T]())+">")
	return &Maker[A, T]{m}
}

// Name returns the method's name.
func (m *Maker[A, T]) Name() string { return m.method.name }

// Remote makes a value at a peer. It returns at once, as [Method.Remote] does.
func (m *Maker[A, T]) Remote(ctx context.Context, p *Peer, in A) (*RRef[T], error) {
	return remote[A, struct{}, T](ctx, m.method, p, in, nil, callSite())
}

// ServeMaker makes handler answer a maker's calls, as [Serve] does for methods.
func ServeMaker[A, T any](m *Maker[A, T], handler func(ctx context.Context, in A) (T, error), opts ...ServeOption) Service {
	s := &served{methodInfo: m.method.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		args, err := m.method.decodeArgs(in)
		if err == nil && in.keep == nil {
			err = &Error{Rank: -1, Kind: KindTypes, Msg: "the method makes a value that stays here, and its caller wants a reference to it: it is called by Remote, which clients in other languages do not have"}
		}
		if err != nil {
			m.method.answer(in, struct{}{}, err)
			return
		}
		out, err := run(in, handler, args)
		keep := in.keep
		in.keep = func(_ any, err error) error {
			if err != nil {
				return keep(nil, err)
			}
			return keep(out, nil)
		}
		m.method.answer(in, struct{}{}, err)
	}
	return Service{[]servicePart{{s, opts}}}
}

// OnMethod is a method on a referenced value: it runs where the value is. T is the
// value's type, A and R are the types of request and response.
type OnMethod[T, A, R any] struct{ method *Method[onArgs[A], R] }

// onArgs are the arguments of a method on a value.
type onArgs[A any] struct {
	On refKey `rpc:"on"`
	In A      `rpc:"in"`
}

// NewOn declares a method on values of type T, which may be any type.
func NewOn[T, A, R any](name string) *OnMethod[T, A, R] {
	m := NewMethod[onArgs[A], R](name)
	m.methodInfo = newMethodInfo(name, "on rref<"+typeText(reflect.TypeFor[T]())+">: "+m.text)
	return &OnMethod[T, A, R]{m}
}

// Name returns the method's name.
func (m *OnMethod[T, A, R]) Name() string { return m.method.name }

// ServeOn makes handler answer a method's calls, as [Serve] does. It gets the value
// itself, which calls of several callers may use at once.
func ServeOn[T, A, R any](m *OnMethod[T, A, R], handler func(ctx context.Context, value T, in A) (R, error), opts ...ServeOption) Service {
	s := Serve(m.method, func(ctx context.Context, in onArgs[A]) (out R, err error) {
		v, err := AgentOf(ctx).refs.find(in.On)
		if err != nil {
			return out, err
		}
		value, err := v.wait(ctx)
		if err != nil {
			return out, err
		}
		t, err := valueAs[T](value)
		if err != nil {
			return out, err
		}
		return handler(ctx, t, in.In)
	}, opts...)
	s.parts[0].method.where = placeOf(handler)
	return s
}

// Call calls the method on what ref refers to, where that is, and waits for the
// answer. A value that has not been made yet is waited for.
func (m *OnMethod[T, A, R]) Call(ctx context.Context, ref *RRef[T], in A) (out R, err error) {
	defer runtime.KeepAlive(ref)
	s, err := m.state(ref)
	if err != nil {
		return out, err
	}
	watched, stop := s.watch(ctx)
	out, err = m.method.Call(watched, s.owner, onArgs[A]{keyOf(s.handle.Ref), in})
	stop()
	return out, s.explain(ctx, m.method.name, err)
}

// Async starts such a call and returns at once. The reference stays good until the
// future is done, even if the program forgets it, but not if it releases it.
func (m *OnMethod[T, A, R]) Async(ctx context.Context, ref *RRef[T], in A) *Future[R] {
	s, err := m.state(ref)
	if err != nil {
		f, resolve := NewFuture[R]()
		var zero R
		resolve(zero, err)
		return f
	}
	ctx, stop := s.watch(ctx)
	f := m.method.Async(ctx, s.owner, onArgs[A]{keyOf(s.handle.Ref), in})
	f.explained(func(err error) error { return s.better(m.method.name, err) })
	f.onDone(func() {
		stop()
		runtime.KeepAlive(ref)
	})
	return f
}

// Remote calls the method and leaves its result with the value. It returns at once,
// as [Method.Remote] does.
func (m *OnMethod[T, A, R]) Remote(ctx context.Context, ref *RRef[T], in A) (*RRef[R], error) {
	s, err := m.state(ref)
	if err != nil {
		return nil, err
	}
	out, err := remote[onArgs[A], R, R](ctx, m.method, s.owner, onArgs[A]{keyOf(s.handle.Ref), in}, s, callSite())
	if err == nil {
		started := out.s.started
		go func() {
			<-started
			runtime.KeepAlive(ref)
		}()
	}
	return out, err
}

func (m *OnMethod[T, A, R]) state(ref *RRef[T]) (*refState, error) {
	if ref == nil || ref.s == nil {
		return nil, &Error{Method: m.method.name, Rank: -1, Kind: KindReleased, Msg: "there is no reference", err: errors.New("no reference")}
	}
	return ref.s, ref.s.usable(m.method.name)
}
