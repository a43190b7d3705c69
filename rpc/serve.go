// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
)

// DefaultConcurrency is how many handlers of an agent run at once, unless
// [WithConcurrency] says otherwise.
const DefaultConcurrency = 1024

// ServeOption changes how a method is served.
type ServeOption func(*served) error

// WithMethodConcurrency bounds how many calls of the method run at once; others wait for
// their turn. With 1 the handler needs no lock. Such calls count apart from those that
// [WithConcurrency] bounds.
func WithMethodConcurrency(n int) ServeOption {
	return func(s *served) error {
		if n < 1 {
			return fmt.Errorf("a concurrency of %d for method %q", n, s.name)
		}
		s.gate = &gate{limit: n}
		return nil
	}
}

// WithQuick promises that the handler takes some microseconds at most and waits for
// nothing: neither for locks that are held for long, nor for calls of its own. The handler
// may then run on the goroutine that read the call. Messages that come after the call on
// its connection wait until the handler returns.
func WithQuick() ServeOption {
	return func(s *served) error { s.quick = true; return nil }
}

// WithTransient promises that the handler keeps no tensor of its arguments or of its
// result: when it has returned and its answer has been sent, nobody uses these tensors or
// views of their memory, and the result is no view of what the handler keeps. Their memory
// is then freed at once, not when the garbage collector finds it, so the next request lies
// in memory that is still in the caches. Agents of distributed autograd keep what they
// need, and the promise has no effect.
func WithTransient() ServeOption {
	return func(s *served) error { s.transient = true; return nil }
}

// Service is one or more methods with the handlers that answer them. [Serve] and the
// functions like it make services. [Init] takes services among its options, and
// [Agent.Offer] adds them later. Several agents may get the same service.
type Service struct{ parts []servicePart }

// servicePart is a method of a service.
type servicePart struct {
	method *served
	opts   []ServeOption
}

// Services makes one service of several.
func Services(list ...Service) Service {
	var all Service
	for _, s := range list {
		all.parts = append(all.parts, s.parts...)
	}
	return all
}

// apply implements [Option].
func (s Service) apply(o *options) error {
	for _, part := range s.parts {
		mine := *part.method // each agent has its own limits and counters
		for _, opt := range part.opts {
			if err := opt(&mine); err != nil {
				return err
			}
		}
		o.serves = append(o.serves, &mine)
	}
	return nil
}

// served is a method and the handler that answers it.
type served struct {
	methodInfo
	where     string // the handler, for stacks
	quick     bool
	transient bool
	gate      *gate              // nil: the agent's
	open      func(in *incoming) // of a stream; nil for others
	run       func(in *incoming) // decodes, calls the handler, answers
	stats     *methodStats
}

// Serve makes handler answer the calls of a method. Each call runs in a goroutine of its
// own. Its ctx ends at the caller's deadline, when the caller gives the call up, and when
// the connection or the agent ends. A call that has ended before its turn comes is not
// run.
//
// A panic of handler is an error of that call and names the line. The serving agent also
// writes it with its stack to standard error, once a minute for a method.
//
// Tensors in the result are read after handler has returned, until the answer has been
// written. If a tensor is changed in place later, as optimizers change parameters, handler
// returns its Clone.
func Serve[A, R any](m *Method[A, R], handler func(ctx context.Context, in A) (R, error), opts ...ServeOption) Service {
	s := &served{methodInfo: m.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		var out R
		args, err := m.decodeArgs(in)
		if err == nil {
			out, err = run(in, handler, args)
		}
		m.answer(in, out, err)
	}
	return Service{[]servicePart{{s, opts}}}
}

// ServeAsync makes handler answer the calls of a method by a future. The handler may
// return long before the future is done, and until then the call takes no place among the
// running handlers. So a parameter server can wait for the last of its trainers. A peer
// may have 16,384 such calls under way, with 8 GiB of requests; all peers together sixteen
// times as many. More calls fail with [KindBusy].
func ServeAsync[A, R any](m *Method[A, R], handler func(ctx context.Context, in A) *Future[R], opts ...ServeOption) Service {
	s := &served{methodInfo: m.methodInfo, where: placeOf(handler)}
	s.run = func(in *incoming) {
		var zero R
		args, err := m.decodeArgs(in)
		if err != nil {
			m.answer(in, zero, err)
			return
		}
		if err := in.park(); err != nil {
			m.answer(in, zero, err)
			return
		}
		f, err := run(in, func(ctx context.Context, a A) (*Future[R], error) { return handler(ctx, a), nil }, args)
		if err == nil && f == nil {
			err = errors.New("the handler returned no future")
		}
		if err != nil {
			m.answer(in, zero, err)
			return
		}
		var once sync.Once
		waits := f.onDone(func() {
			out, err := f.result()
			once.Do(func() { m.answer(in, out, err) })
		})
		if in.keep == nil { // a value that stays here may have other users than its caller
			in.own.park(func(why error) {
				once.Do(func() {
					f.forget(waits)
					in.runs = true
					m.answer(in, zero, why)
				})
			})
		}
	}
	return Service{[]servicePart{{s, opts}}}
}

// placeOf names a function and the line where it begins.
func placeOf(f any) string {
	fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
	if fn == nil {
		return "a handler"
	}
	file, line := fn.FileLine(fn.Entry())
	return fmt.Sprintf("%s (%s:%d)", fn.Name(), filepath.Base(file), line)
}
