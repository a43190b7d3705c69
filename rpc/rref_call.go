// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"reflect"
	"runtime"
)

// Maker is a method whose result stays where it is made: a Go value of any type, such as
// an environment with open files, which cannot travel. [Maker.Remote] returns a reference
// to it, and [OnMethod]s are called on it.
type Maker[A, T any] struct{ method *Method[A, struct{}] }

// NewMaker declares a method that makes a T of an A.
func NewMaker[A, T any](name string) *Maker[A, T] {
	m := NewMethod[A, struct{}](name)
	m.methodInfo = newMethodInfo(name, m.args.Text+" -> rref<"+typeText(reflect.TypeFor[T]())+">")
	return &Maker[A, T]{m}
}

// Name returns the method's name.
func (m *Maker[A, T]) Name() string { return m.method.name }

// Remote makes a value at a peer. It does not wait; see [Method.Remote].
func (m *Maker[A, T]) Remote(ctx context.Context, p *Peer, in A) (*RRef[T], error) {
	return remote[A, struct{}, T](ctx, m.method, p, in, nil, callSite())
}

// ServeMaker makes handler answer the calls of a maker; see [Serve].
func ServeMaker[A, T any](m *Maker[A, T], handler func(ctx context.Context, in A) (T, error), opts ...ServeOption) Service {
	s := &served{methodInfo: m.method.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		args, err := m.method.decodeArgs(in)
		if err == nil && in.keep == nil {
			err = &Error{Rank: -1, Kind: KindTypes, Msg: "the method makes a value that stays here: call it by Remote, which returns a reference (clients in other languages cannot)"}
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

// OnMethod is a method on a value that is referred to. It runs in the value's process. T
// is the type of the value, A and R those of request and response.
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

// ServeOn makes handler answer the calls of a method; see [Serve]. The handler gets the
// value itself. Several callers may use the value at once.
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

// Call calls the method on the value that ref refers to, and waits for the answer. If the
// value has not been made yet, Call waits for it.
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

// Async starts such a call and returns its future. Until the future is done the program
// may forget the reference, but must not release it.
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

// Remote calls the method and leaves the result in the value's process. It does not wait;
// see [Method.Remote].
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
		return nil, &Error{Method: m.method.name, Rank: -1, Kind: KindReleased, Msg: "the reference is nil", err: errors.New("nil reference")}
	}
	return ref.s, ref.s.usable(m.method.name)
}
