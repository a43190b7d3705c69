// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"math"
	"strconv"
)

// opcode is what a request asks for. The numbers are the wire's.
type opcode byte

const (
	opSet    opcode = 1
	opGet    opcode = 2
	opAdd    opcode = 3
	opCAS    opcode = 4
	opWait   opcode = 5
	opDelete opcode = 6
	// opCancel ends a Get or Wait of the same client that has not been answered.
	opCancel opcode = 7
)

func (o opcode) String() string {
	switch o {
	case opSet:
		return "set"
	case opGet:
		return "get"
	case opAdd:
		return "add"
	case opCAS:
		return "compare and set"
	case opWait:
		return "wait"
	case opDelete:
		return "delete"
	case opCancel:
		return "cancel"
	}
	return "operation " + strconv.Itoa(int(o))
}

// request is one operation.
type request struct {
	op       opcode
	keys     []string // one, except for a wait
	value    []byte   // set: the value; compare and set: the desired one
	expected []byte   // nil: the key must not exist
	delta    int64
}

// status is how an operation ended. The numbers are the wire's.
type status byte

const (
	statusOK         status = 1
	statusNo         status = 2 // compare and set: another value; delete: no such key
	statusNotInteger status = 3
	statusCancelled  status = 4
	statusLimit      status = 5
)

// reply is how an operation ended and what it returns.
type reply struct {
	status  status
	value   []byte   // get, compare and set; nil where there is none
	number  int64    // add
	missing []string // cancelled: keys that did not exist
}

// call names a request: who made it, and which of theirs it is.
type call struct {
	client uint64
	id     uint64
}

// answer is a reply and whose it is.
type answer struct {
	call
	reply
}

// machine is the state of a store: a pure function of the requests so far.
// It has no lock, clock or connection; Memory and Server drive it. Values in
// it are never written to, so replies may share them.
type machine struct {
	values map[string][]byte
	// Each waiting call is listed under one key that it misses: when that
	// comes, the call looks for another one.
	waiting map[string][]*waiter
	calls   map[uint64]map[uint64]*waiter // waiting calls by client and id
}

// waiter is a Get or a Wait that has not been answered.
type waiter struct {
	call
	op   opcode
	keys []string
	// the key that it is listed under, and its place in that list
	on, place int
}

func newMachine() *machine {
	return &machine{
		values:  map[string][]byte{},
		waiting: map[string][]*waiter{},
		calls:   map[uint64]map[uint64]*waiter{},
	}
}

// apply does one request, which has passed its check and whose call is not one
// that waits, and appends the
// answers to out: its own unless it has to wait, and those of
// waits that it ends. The machine keeps q's slices.
func (m *machine) apply(c call, q request, out []answer) []answer {
	switch q.op {
	case opSet:
		out = append(out, answer{c, reply{status: statusOK}})
		return m.set(q.keys[0], q.value, out)
	case opGet, opWait:
		w := &waiter{call: c, op: q.op, keys: q.keys}
		if m.settle(w) {
			return append(out, m.answer(w))
		}
		mine := m.calls[c.client]
		if mine == nil {
			mine = map[uint64]*waiter{}
			m.calls[c.client] = mine
		}
		mine[c.id] = w
		return out
	case opAdd:
		n := int64(0)
		if old, ok := m.values[q.keys[0]]; ok {
			var err error
			if n, err = strconv.ParseInt(string(old), 10, 64); err != nil {
				return append(out, answer{c, reply{status: statusNotInteger}})
			}
		}
		if q.delta > 0 && n > math.MaxInt64-q.delta || q.delta < 0 && n < math.MinInt64-q.delta {
			return append(out, answer{c, reply{status: statusNotInteger}})
		}
		n += q.delta
		out = append(out, answer{c, reply{status: statusOK, number: n}})
		return m.set(q.keys[0], strconv.AppendInt(nil, n, 10), out)
	case opCAS:
		old, ok := m.values[q.keys[0]]
		if ok != (q.expected != nil) || !bytes.Equal(old, q.expected) {
			return append(out, answer{c, reply{status: statusNo, value: old}})
		}
		if q.value == nil {
			q.value = []byte{}
		}
		out = append(out, answer{c, reply{status: statusOK, value: q.value}})
		return m.set(q.keys[0], q.value, out)
	case opDelete:
		if _, ok := m.values[q.keys[0]]; !ok {
			return append(out, answer{c, reply{status: statusNo}})
		}
		delete(m.values, q.keys[0])
		return append(out, answer{c, reply{status: statusOK}})
	}
	return append(out, answer{c, reply{status: statusLimit}})
}

// set stores a value and answers the calls that waited for its key.
func (m *machine) set(key string, value []byte, out []answer) []answer {
	if value == nil {
		value = []byte{} // nil is no value
	}
	m.values[key] = value
	listed, ok := m.waiting[key]
	if !ok {
		return out
	}
	delete(m.waiting, key)
	for _, w := range listed {
		if m.settle(w) {
			m.forget(w)
			out = append(out, m.answer(w))
		}
	}
	return out
}

// settle says whether all keys of a waiter exist; if not it lists the waiter
// under one that does not.
func (m *machine) settle(w *waiter) bool {
	for range w.keys {
		key := w.keys[w.on]
		if _, ok := m.values[key]; !ok {
			w.place = len(m.waiting[key])
			m.waiting[key] = append(m.waiting[key], w)
			return false
		}
		w.on = (w.on + 1) % len(w.keys)
	}
	return true
}

// answer is what a settled waiter gets.
func (m *machine) answer(w *waiter) answer {
	r := reply{status: statusOK}
	if w.op == opGet {
		r.value = m.values[w.keys[0]]
	}
	return answer{w.call, r}
}

// cancel ends a waiting call; its answer names the keys that are missing.
// There is none when the call is not waiting.
func (m *machine) cancel(c call, out []answer) []answer {
	w, ok := m.calls[c.client][c.id]
	if !ok {
		return out
	}
	m.unlist(w)
	m.forget(w)
	var missing []string
	for _, k := range w.keys {
		if _, ok := m.values[k]; !ok {
			missing = append(missing, k)
		}
	}
	return append(out, answer{c, reply{status: statusCancelled, missing: missing}})
}

// drop forgets the waiting calls of a client that has gone.
func (m *machine) drop(client uint64) {
	for _, w := range m.calls[client] {
		m.unlist(w)
	}
	delete(m.calls, client)
}

// numWaiting returns how many calls of a client wait.
func (m *machine) numWaiting(client uint64) int { return len(m.calls[client]) }

// isWaiting says whether a call waits.
func (m *machine) isWaiting(c call) bool {
	_, ok := m.calls[c.client][c.id]
	return ok
}

// forget removes a call from those that wait.
func (m *machine) forget(w *waiter) {
	mine := m.calls[w.client]
	delete(mine, w.id)
	if len(mine) == 0 {
		delete(m.calls, w.client)
	}
}

// unlist removes a call from those that wait for its key, in constant time:
// a client may go that has thousands.
func (m *machine) unlist(w *waiter) {
	key := w.keys[w.on]
	listed := m.waiting[key]
	last := listed[len(listed)-1]
	listed[w.place], last.place = last, w.place
	listed[len(listed)-1] = nil
	if len(listed) == 1 {
		delete(m.waiting, key)
		return
	}
	m.waiting[key] = listed[:len(listed)-1]
}
