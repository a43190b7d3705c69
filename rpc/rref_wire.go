// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/rref"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// encodeNumber is what a call says of the reference to its result.
func encodeNumber(n uint64) []byte {
	var e cbor.Encoder
	e.Uint(n)
	return e.Buf
}

// wireText implements [wired].
func (r *RRef[T]) wireText() (string, error) {
	return "rref<" + typeText(reflect.TypeFor[T]()) + ">", nil
}

// encodeWire implements [wired]: a reference is the array [owner, creator, number,
// pass] behind its tag. The receiver gets a reference of its own; this one may be
// released as soon as the call has been made.
func (r *RRef[T]) encodeWire(m *wire.Outgoing) error {
	s := r.s
	if s == nil {
		return errors.New("the zero reference")
	}
	receiver, ok := m.To.(*Peer)
	switch {
	case !ok:
		return errors.New("a reference inside an error")
	case receiver.agent.refs != s.k:
		return fmt.Errorf("a reference of agent %s, sent by agent %s", s.k.agent.name, receiver.agent.name)
	case receiver.rank < 0:
		return fmt.Errorf("a reference for %s, which is no agent of the job", receiver.name)
	}
	if err := s.usable("pass on a reference"); err != nil {
		return err
	}
	k, to := s.k, nodeOf(receiver)
	var pass rref.Pass
	k.act(func(now time.Time) { pass, ok = k.m.Share(now, s.handle, to, m.Deadline) })
	if !ok { // it has been released, or lost, just now
		if err := s.usable("pass on a reference"); err != nil {
			return err
		}
		return errorf(KindGone, "pass on a reference", s.owner, "the reference to a %s is lost", s.text)
	}
	m.Gone = append(m.Gone, func(err error) {
		if err != nil {
			k.act(func(now time.Time) { k.m.Withdraw(now, to, pass) })
		}
	})
	e := &m.Enc
	e.Tag(tagRRef)
	e.Array(4)
	e.Uint(uint64(pass.Ref.Owner))
	e.Uint(uint64(pass.Ref.Creator))
	e.Uint(pass.Ref.N)
	e.Uint(pass.N)
	return nil
}

// decodeWire implements [wired].
func (r *RRef[T]) decodeWire(in *wire.Received) error {
	d := &in.Dec
	tag, ok := d.Tag()
	if d.Err() == nil && (!ok || tag != tagRRef) {
		return fmt.Errorf("want a reference (tag %d)", tagRRef)
	}
	if n := d.Array(); d.Err() == nil && n != 4 {
		return fmt.Errorf("a reference of %d numbers", n)
	}
	pass := rref.Pass{Ref: rref.Ref{Owner: rref.Node(d.Uint()), Creator: rref.Node(d.Uint()), N: d.Uint()}, N: d.Uint()}
	if d.Err() != nil {
		return nil // which it keeps
	}
	sender, ok := in.From.(*Peer)
	if !ok || sender.agent.refs == nil || sender.rank < 0 {
		return errors.New("a reference from where none can come from")
	}
	k := sender.agent.refs
	if !k.member(pass.Ref.Owner) || !k.member(pass.Ref.Creator) {
		return errors.New("a reference to a value of an agent that is not in the job")
	}
	pass.From = nodeOf(sender)
	s := &refState{k: k, owner: k.peerOf(pass.Ref.Owner), from: sender}
	var standing rref.Standing
	k.act(func(now time.Time) {
		if s.handle, standing = k.m.Adopt(now, pass.From, pass); standing != rref.Counted {
			return
		}
		if s.handle.N == 0 {
			s.value = k.valueOf(s.handle.Ref)
		} else {
			k.states[s.handle] = s
		}
	})
	switch standing {
	case rref.Counted:
	case rref.Unwanted:
		return errorf(KindGone, "take a reference", s.owner, "the value has been freed")
	default:
		return errors.New("a reference that came before, or too many")
	}
	r.become(s)
	return nil
}

// encodeNotes makes the body of a note: [instance, message, …], where a message is
// [kind, number], or [kind, number, owner, creator, number of the reference, pass].
func encodeNotes(instance uint64, messages []rref.Message) []byte {
	var e cbor.Encoder
	e.Array(1 + len(messages))
	e.Uint(instance)
	for _, m := range messages {
		if m.Kind != rref.KindAdd {
			e.Array(2)
			e.Uint(uint64(m.Kind))
			e.Uint(m.N)
			continue
		}
		e.Array(6)
		e.Uint(uint64(m.Kind))
		e.Uint(m.N)
		e.Uint(uint64(m.Ref.Owner))
		e.Uint(uint64(m.Ref.Creator))
		e.Uint(m.Ref.N)
		e.Uint(m.Pass)
	}
	return e.Buf
}

func decodeNotes(body []byte) (instance uint64, messages []rref.Message, err error) {
	var d cbor.Decoder
	d.Reset(body)
	n := d.Array()
	instance = d.Uint()
	for i := 1; i < n && d.Err() == nil; i++ {
		fields := d.Array()
		kind := d.Uint()
		if d.Err() == nil && (kind > 255 || fields != 2 && fields != 6) {
			d.Fail(fmt.Errorf("a message of kind %d with %d fields", kind, fields))
		}
		m := rref.Message{Kind: rref.Kind(kind), N: d.Uint()}
		if fields == 6 {
			m.Ref = rref.Ref{Owner: rref.Node(d.Uint()), Creator: rref.Node(d.Uint()), N: d.Uint()}
			m.Pass = d.Uint()
		}
		messages = append(messages, m)
	}
	d.End()
	if d.Err() != nil {
		return 0, nil, d.Err()
	}
	return instance, messages, nil
}

// refKey names a value on the wire: owner, creator, number.
type refKey [3]uint64

func keyOf(r rref.Ref) refKey { return refKey{uint64(r.Owner), uint64(r.Creator), r.N} }
