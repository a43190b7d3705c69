// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/cbor"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/rref"
)

// KindGone: the value of the reference does not exist any more. Its owner has left, or has
// not heard from this process for the lease.
const KindGone Kind = "reference lost"

// rrefNote is the subject of the protocol's messages.
const rrefNote = "cohort.rref"

// keeper keeps an agent's references: the machine of package rref that counts them, the
// values of this process that references are to, and this process's references to values
// of others.
type keeper struct {
	agent    *Agent
	node     rref.Node
	instance uint64
	retry    time.Duration
	fetches  sync.Map // of *Method[fetchArgs, T], by the type T
	kept     sync.Map // of *Method[A, uint64], by the *Method[A, R]

	mu     sync.Mutex
	m      *rref.Machine
	values map[rref.Ref]*refValue
	states map[rref.Handle]*refState // the forks of this process
	timer  *time.Timer               // nil: the machine needs no ticks
	closed bool
}

// newKeeper begins to keep an agent's references.
func newKeeper(a *Agent, lease time.Duration) *keeper {
	c := rref.Config{Lease: lease, Beat: lease / 10, Retry: min(time.Second, lease/30)}
	k := &keeper{
		agent: a, node: nodeOf(a.self), instance: uint64(time.Now().UnixNano()), retry: c.Retry,
		values: map[rref.Ref]*refValue{}, states: map[rref.Handle]*refState{},
	}
	k.m = rref.New(k.node, k.instance, c)
	a.end.OnNote(rrefNote, k.take)
	return k
}

// nodeOf numbers agents from 1.
func nodeOf(p *Peer) rref.Node { return rref.Node(p.rank + 1) }

func (k *keeper) peerOf(n rref.Node) *Peer { return k.agent.PeerRank(int(n) - 1) }

// member says whether a node is an agent of the job.
func (k *keeper) member(n rref.Node) bool { return n > 0 && n <= rref.Node(k.agent.Size()) }

// act calls f with the machine locked, and does what the machine then asks for. Goroutines
// that wait for a value are woken after the lock has been released.
func (k *keeper) act(f func(now time.Time)) {
	k.mu.Lock()
	now := time.Now()
	f(now)
	var out []rref.Send
	var over []*refValue
	for actions := k.m.Actions(); len(actions) > 0; actions = k.m.Actions() {
		for _, a := range actions {
			switch a := a.(type) {
			case rref.Send:
				if a.To == k.node {
					k.m.Receive(now, k.node, k.instance, a.Message)
				} else {
					out = append(out, a)
				}
			case rref.Free:
				over = append(over, k.forget(a.Ref))
			case rref.Missing:
				over = append(over, k.forget(a.Ref))
			case rref.Lost:
				if s := k.states[a.Handle]; s != nil {
					delete(k.states, a.Handle)
					s.lost = a.Reason
				}
			}
		}
	}
	if k.timer == nil && !k.closed && k.m.Busy() {
		k.timer = time.AfterFunc(k.retry/2, k.tick)
	}
	k.mu.Unlock()
	for _, v := range over {
		if v != nil {
			v.settle(nil, &Error{Rank: -1, Kind: KindGone, Msg: "the value has been freed, or was never made"})
		}
	}
	k.deliver(out)
}

// forget takes a value off the list.
func (k *keeper) forget(r rref.Ref) *refValue {
	v := k.values[r]
	delete(k.values, r)
	return v
}

// valueOf returns the value of a reference, which may not be there yet.
func (k *keeper) valueOf(r rref.Ref) *refValue {
	v := k.values[r]
	if v == nil {
		v = newValue()
		k.values[r] = v
	}
	return v
}

func (k *keeper) tick() {
	k.act(func(now time.Time) {
		k.timer = nil
		if !k.closed {
			k.m.Tick(now)
		}
	})
}

// maxNotes bounds the messages of one note.
const maxNotes = 1 << 10

// deliver sends messages to their nodes; one that is lost is sent again in time.
func (k *keeper) deliver(out []rref.Send) {
	for len(out) > 0 {
		to := out[0].To
		var mine []rref.Message
		rest := out[:0]
		for _, s := range out {
			if s.To == to && len(mine) < maxNotes {
				mine = append(mine, s.Message)
			} else {
				rest = append(rest, s)
			}
		}
		out = rest
		if p := k.peerOf(to); p.link != nil {
			p.link.Note(rrefNote, encodeNotes(k.instance, mine))
		}
	}
}

// take reads messages of the protocol.
func (k *keeper) take(from *link.ServerConn, body []byte) {
	instance, messages, err := decodeNotes(body)
	if err != nil || from.Peer.Rank < 0 {
		return // as if they had been lost
	}
	k.act(func(now time.Time) {
		if !from.Current() {
			return // a leave of an earlier life would count as one of this life
		}
		for _, m := range messages {
			if m.Kind == rref.KindAdd && !k.member(m.Ref.Creator) {
				continue
			}
			k.m.Receive(now, rref.Node(from.Peer.Rank+1), instance, m)
		}
	})
}

// remote prepares a call whose result stays here. extra is the caller's number of the
// reference to it.
func (k *keeper) remote(in *incoming, extra []byte) *Error {
	var d cbor.Decoder
	d.Reset(extra)
	n := d.Uint()
	d.End()
	if d.Err() != nil || in.caller.rank < 0 {
		return &Error{Rank: -1, Kind: KindProtocol, Msg: "the caller cannot have references, or its number of the reference cannot be read"}
	}
	r := rref.Ref{Owner: k.node, Creator: nodeOf(in.caller), N: n}
	in.kept = k.instance
	if in.caller == k.agent.self { // it has the reference already
		in.keep = func(value any, err error) error {
			k.mu.Lock()
			v := k.values[r]
			k.mu.Unlock()
			if v != nil {
				v.settle(value, err)
			}
			return err
		}
		return nil
	}
	var standing rref.Standing
	var v *refValue
	k.act(func(now time.Time) {
		if standing = k.m.Create(now, r.Creator, r); standing == rref.Counted {
			v = k.valueOf(r)
		}
	})
	switch standing {
	case rref.Counted:
		in.keep = func(value any, err error) error {
			v.settle(value, err)
			k.act(func(now time.Time) { k.m.Done(now, r) })
			return err
		}
	case rref.Unwanted:
		in.keep = func(_ any, err error) error { return err }
	default:
		return &Error{Rank: -1, Kind: KindProtocol, Msg: "the number of the reference to the result is taken, or there are too many references"}
	}
	return nil
}

// find returns the value that a caller refers to.
func (k *keeper) find(key refKey) (v *refValue, err error) {
	r := rref.Ref{Owner: rref.Node(key[0]), Creator: rref.Node(key[1]), N: key[2]}
	if !k.member(r.Creator) {
		return nil, &Error{Rank: -1, Kind: KindProtocol, Msg: "a reference made by an agent that is not in the job"}
	}
	k.act(func(now time.Time) {
		switch s, there := k.m.Has(now, r); {
		case !there || s == rref.Counted:
			v = k.valueOf(r)
		case s == rref.Unwanted:
			err = &Error{Rank: -1, Kind: KindGone, Msg: "the value has been freed: all references to it were released, or their lease has ended"}
		default:
			err = &Error{Rank: -1, Kind: KindProtocol, Msg: "the reference is to a value of another agent, or too many are awaited"}
		}
	})
	return v, err
}

// References counts the references of an agent.
type References struct {
	// Values are kept here for references: this agent's own and others'.
	Values int
	// Held are this agent's references to values of others, those that are on
	// their way to being released included.
	Held int
	// By counts the references that others have to values here, by their names.
	By map[string]int
}

// References counts the references of the agent, of all types.
func (a *Agent) References() References {
	k := a.refs
	k.mu.Lock()
	values, uses, forks := k.m.Count()
	k.mu.Unlock()
	r := References{Values: values, Held: uses, By: map[string]int{}}
	for n, num := range forks {
		r.By[k.peerOf(n).name] += num
	}
	return r
}

const (
	// maxLeaks is how many references a report of leaks lists one by one.
	maxLeaks = 20
	// leakTime is how long the report waits for the word of releases that are on
	// their way.
	leakTime = 200 * time.Millisecond
)

// leaks describes the references that this process still holds, and those that
// others hold here.
func (k *keeper) leaks() []string {
	runtime.GC() // what nothing refers to is no leak
	tick := time.NewTicker(leakTime / 200)
	defer tick.Stop()
	for by := time.Now().Add(leakTime); time.Now().Before(by); <-tick.C {
		k.mu.Lock()
		_, _, forks := k.m.Count()
		k.mu.Unlock()
		if len(forks) == 0 {
			break
		}
	}
	var lines []string
	k.mu.Lock()
	for _, s := range k.states {
		if !s.released && s.reachable() {
			lines = append(lines, fmt.Sprintf("a reference to a %s at %s, %s, was not released", s.text, s.owner.name, s.madeAt()))
		}
	}
	_, _, forks := k.m.Count()
	k.mu.Unlock()
	slices.Sort(lines)
	if len(lines) > maxLeaks {
		lines = append(lines[:maxLeaks], fmt.Sprintf("and %d more references were not released", len(lines)-maxLeaks))
	}
	var by []string
	for _, n := range slices.Sorted(maps.Keys(forks)) {
		by = append(by, fmt.Sprintf("%s (%d)", k.peerOf(n).name, forks[n]))
	}
	if len(by) > 0 {
		lines = append(lines, "values here are still referred to by "+strings.Join(by, ", "))
	}
	return lines
}

// leaveTime is how long close waits until these messages have been written.
const leaveTime = 100 * time.Millisecond

// close ends all references. It tells the agents that have references here, or whose
// values are referred to here, if there is a connection to them; other references end with
// their lease.
func (k *keeper) close() {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	near := k.m.Near()
	values := k.values
	k.values, k.states = map[rref.Ref]*refValue{}, map[rref.Handle]*refState{}
	k.mu.Unlock()
	for _, v := range values {
		v.settle(nil, &Error{Rank: -1, Kind: KindClosed, Msg: errClosed.Error()})
	}
	var told []*link.ClientConn
	for _, n := range near {
		p := k.peerOf(n)
		if c := p.conn(); c != nil {
			p.link.Note(rrefNote, encodeNotes(k.instance, []rref.Message{{Kind: rref.KindLeave}}))
			told = append(told, c)
		}
	}
	tick := time.NewTicker(leaveTime / 100)
	defer tick.Stop()
	by := time.Now().Add(leaveTime)
	for _, c := range told {
		for c.Busy() && time.Now().Before(by) {
			<-tick.C
		}
	}
}
