// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/rpc/internal/cbor"
)

// refValue is what references of this agent's refer to, now or later.
type refValue struct {
	mu      sync.Mutex
	settled bool
	done    chan struct{}
	next    followers
	value   any
	err     error
}

func newValue() *refValue { return &refValue{done: make(chan struct{})} }

// settle gives the value, or why there is none. The first time counts.
func (v *refValue) settle(value any, err error) {
	v.mu.Lock()
	if v.settled {
		v.mu.Unlock()
		return
	}
	v.settled, v.value, v.err = true, value, err
	next := v.next.take()
	close(v.done)
	v.mu.Unlock()
	for _, w := range next {
		go w.run()
	}
}

// reply answers a call for the value with it, when the value has been made. If the caller
// gives up before, its call is answered and forgotten.
func (v *refValue) reply(in *incoming, want string) {
	select {
	case <-v.done:
		in.replyValue(v, want)
		return
	default:
	}
	if err := in.park(); err != nil {
		in.reply(err, nil)
		return
	}
	var once sync.Once
	v.mu.Lock()
	if v.settled {
		v.mu.Unlock()
		in.replyValue(v, want)
		return
	}
	waits := v.next.add(func() { once.Do(func() { in.replyValue(v, want) }) })
	v.mu.Unlock()
	in.own.park(func(why error) {
		once.Do(func() {
			v.mu.Lock()
			v.next.remove(waits)
			v.mu.Unlock()
			in.reply(why, nil)
		})
	})
}

// wait waits for the value.
func (v *refValue) wait(ctx context.Context) (any, error) {
	select {
	case <-v.done:
		return v.value, v.err
	default:
	}
	select {
	case <-v.done:
		return v.value, v.err
	case <-ctx.Done():
		return nil, ctxerr.Of(ctx)
	}
}

// fetchArgs ask for the value of a reference.
type fetchArgs struct {
	Of   refKey `rpc:"of"`
	Type string `rpc:"type"` // which the caller expects
}

const fetchName = "cohort.value"

// fetching is the method by which values are fetched.
func fetching() *served {
	args := NewMethod[fetchArgs, struct{}](fetchName)
	s := &served{methodInfo: args.methodInfo, where: "a remote reference"}
	s.run = func(in *incoming) {
		ask, err := args.decodeArgs(in)
		var v *refValue
		if err == nil {
			v, err = in.agent.refs.find(ask.Of)
		}
		if err != nil {
			in.reply(err, nil)
			return
		}
		v.reply(in, ask.Type)
	}
	return s
}

// replyValue answers with a value that is settled.
func (in *incoming) replyValue(v *refValue, want string) {
	if v.err != nil {
		in.reply(v.err, nil)
		return
	}
	t := reflect.TypeOf(v.value)
	if want == "interface {}" {
		t = reflect.TypeFor[any]()
	} else if got := typeText(t); got != want {
		in.reply(&Error{Rank: -1, Kind: KindTypes, Msg: fmt.Sprintf("the value is a %s, the reference is to a %s", got, want)}, nil)
		return
	}
	plan, err := codec.Plan(t)
	if err != nil {
		in.reply(&Error{Rank: -1, Kind: KindTypes, Msg: fmt.Sprintf("the value cannot travel (call methods on it: ServeOn): %v", err)}, nil)
		return
	}
	in.reply(nil, func(e *cbor.Encoder) {
		box := reflect.New(t)
		if v.value != nil {
			box.Elem().Set(reflect.ValueOf(v.value))
		}
		plan.Encode(e, box.UnsafePointer())
	})
}

// typeText names the type of a referenced value.
func typeText(t reflect.Type) string {
	switch t {
	case nil:
		return "any"
	case tensorType:
		return "tensor"
	}
	return t.String()
}

// fetchMethod returns the method that fetches values of a type.
func fetchMethod[T any](k *keeper) (*Method[fetchArgs, T], error) {
	t := reflect.TypeFor[T]()
	if m, ok := k.fetches.Load(t); ok {
		return m.(*Method[fetchArgs, T]), nil
	}
	if _, err := codec.Plan(t); err != nil {
		return nil, fmt.Errorf("a %s cannot travel, call methods on it: %w", typeText(t), err)
	}
	if f := codec.Hidden(t); f != "" {
		return nil, fmt.Errorf("a copy of a %s would lack the field %s, which is not exported: call methods on the value (NewOn), or say `rpc:\"-\"` at the field", typeText(t), f)
	}
	m := NewMethod[fetchArgs, T](fetchName)
	m.sig = 0 // the owner looks at the type
	k.fetches.Store(t, m)
	return m, nil
}

// valueAs gives a value the type of a reference to it.
func valueAs[T any](v any) (T, error) {
	value, ok := v.(T)
	if !ok && v != nil {
		return value, &Error{Rank: -1, Kind: KindTypes, Msg: fmt.Sprintf("the value is a %s, the reference is to a %s",
			typeText(reflect.TypeOf(v)), typeText(reflect.TypeFor[T]()))}
	}
	return value, nil
}
