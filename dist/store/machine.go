// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"container/list"
	"math"
	"strconv"
	"strings"
)

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

// entrySize is about what a key, or a value in a queue, takes beside its bytes.
const entrySize = 64

// machine is the state of a store: a pure function of the requests so far.
// It has no lock, clock or connection; Memory, Server and File drive it. The
// bytes of values in it are never written to, so replies may share them (an
// append writes behind them).
type machine struct {
	values map[string][]byte
	size   int64 // bytes of the keys and of all values, and entrySize for each, once counted
	// counted says that size is kept up: to do so costs each put a look for the key.
	counted bool
	queues  map[string]*queue // those that are not empty, or are waited for
	// Each waiting call is listed under one key that it misses: when that
	// comes, the call looks for another one.
	waiting map[string][]*waiter
	calls   map[uint64]map[uint64]*waiter // waiting calls by client and id
}

// waiter is a call that has not been answered.
type waiter struct {
	call
	op   opcode
	keys []string
	need int64
	// the key that it is listed under, and its place in that list
	on, place int
	turn      *list.Element // a pop's place in its queue
}

// queue is a list of values, or of pops that wait for some; never both.
type queue struct {
	values [][]byte
	head   int       // values before it are gone
	pops   list.List // of *waiter, oldest first
}

func (q *queue) len() int { return len(q.values) - q.head }

func newMachine() *machine {
	return &machine{
		values:  map[string][]byte{},
		queues:  map[string]*queue{},
		waiting: map[string][]*waiter{},
		calls:   map[uint64]map[uint64]*waiter{},
	}
}

// apply does one request, which has passed its check, and appends answers to out: the
// request's own unless it has to wait, and those of waiting calls that it ends. c is not
// the name of a call that waits. The machine keeps q's slices.
func (m *machine) apply(c call, q request, out []answer) []answer {
	switch q.op {
	case opSet:
		out = append(out, answer{c, reply{status: statusOK}})
		return m.set(q.keys[0], q.value, out)
	case opMultiSet:
		// All are there before any wait is looked at.
		for i, k := range q.keys {
			m.put(k, q.values[i])
		}
		out = append(out, answer{c, reply{status: statusOK}})
		for _, k := range q.keys {
			out = m.awake(k, out)
		}
		return out
	case opAppend:
		return m.append(c, q, MaxValue, out)
	case opGet, opWait, opMultiGet:
		w := &waiter{call: c, op: q.op, keys: q.keys}
		if m.settle(w) {
			return append(out, m.answer(w))
		}
		m.remember(w)
		return out
	case opPush:
		out = append(out, answer{c, reply{status: statusOK}})
		return m.push(q.keys[0], q.value, out)
	case opPop:
		w := &waiter{call: c, op: q.op, keys: q.keys}
		if v, ok := m.pop(q.keys[0]); ok {
			return append(out, answer{c, reply{status: statusOK, value: v}})
		}
		w.turn = m.queue(q.keys[0]).pops.PushBack(w)
		m.remember(w)
		return out
	case opQueueLen:
		n := 0
		if l := m.queues[q.keys[0]]; l != nil {
			n = l.len()
		}
		return append(out, answer{c, reply{status: statusOK, number: int64(n)}})
	case opNumKeys:
		return append(out, answer{c, reply{status: statusOK, number: m.numKeys(q.keys[0])}})
	case opAdd:
		return m.add(c, q, out)
	case opCAS:
		return m.compareAndSet(c, q, out)
	case opDelete:
		return m.remove(c, q.keys[0], out)
	}
	return m.applyPyTorch(c, q, out)
}

// add adds to a number, 0 where there is none.
func (m *machine) add(c call, q request, out []answer) []answer {
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
}

// compareAndSet sets a value if the old one is as expected.
func (m *machine) compareAndSet(c call, q request, out []answer) []answer {
	old, ok := m.values[q.keys[0]]
	if ok != (q.expected != nil) || !bytes.Equal(old, q.expected) {
		return append(out, answer{c, reply{status: statusNo, value: old}})
	}
	if q.value == nil {
		q.value = []byte{}
	}
	out = append(out, answer{c, reply{status: statusOK, value: q.value}})
	return m.set(q.keys[0], q.value, out)
}

// remove deletes a key.
func (m *machine) remove(c call, key string, out []answer) []answer {
	old, ok := m.values[key]
	if !ok {
		return append(out, answer{c, reply{status: statusNo}})
	}
	m.size += -int64(entrySize + len(key) + len(old))
	delete(m.values, key)
	return append(out, answer{c, reply{status: statusOK}})
}

// ready says whether a request would be answered at once.
func (m *machine) ready(q *request) bool {
	if q.op == opPop {
		l := m.queues[q.keys[0]]
		return l != nil && l.len() > 0
	}
	return !q.op.waits() || len(m.missing(q.keys)) == 0
}

// missing returns those of keys that do not exist.
func (m *machine) missing(keys []string) (missing []string) {
	for _, k := range keys {
		if _, ok := m.values[k]; !ok {
			missing = append(missing, k)
		}
	}
	return missing
}

// numKeys counts the keys that begin with prefix and are users'.
func (m *machine) numKeys(prefix string) (n int64) {
	if prefix == "" {
		n = int64(len(m.values))
	} else {
		for k := range m.values {
			if strings.HasPrefix(k, prefix) {
				n++
			}
		}
	}
	for _, k := range uncounted {
		if _, ok := m.values[k]; ok && strings.HasPrefix(k, prefix) {
			n--
		}
	}
	return n
}

// queue returns the queue at key, a new one if there is none.
func (m *machine) queue(key string) *queue {
	l := m.queues[key]
	if l == nil {
		l = &queue{}
		m.queues[key] = l
	}
	return l
}

// push gives a value to the pop that has waited longest, or keeps it.
func (m *machine) push(key string, value []byte, out []answer) []answer {
	if value == nil {
		value = []byte{} // nil is no value
	}
	l := m.queue(key)
	if first := l.pops.Front(); first != nil {
		w := first.Value.(*waiter)
		m.unlist(w)
		m.forget(w)
		return append(out, answer{w.call, reply{status: statusOK, value: value}})
	}
	l.values = append(l.values, value)
	m.size += int64(entrySize + len(value))
	return m.awake(key, out) // a wait of PyTorch's is for a queue too
}

// pop takes the oldest value of a queue.
func (m *machine) pop(key string) (value []byte, ok bool) {
	l := m.queues[key]
	if l == nil || l.len() == 0 {
		return nil, false
	}
	value = l.values[l.head]
	m.size += -int64(entrySize + len(value))
	l.values[l.head] = nil
	l.head++
	switch {
	case l.len() == 0:
		delete(m.queues, key)
	case l.head > len(l.values)/2: // a queue that is never empty must not grow for ever
		n := copy(l.values, l.values[l.head:])
		clear(l.values[n:])
		l.values, l.head = l.values[:n], 0
	}
	return value, true
}

// remember lists a call as waiting.
func (m *machine) remember(w *waiter) {
	mine := m.calls[w.client]
	if mine == nil {
		mine = map[uint64]*waiter{}
		m.calls[w.client] = mine
	}
	mine[w.id] = w
}

// append appends to a value that may have some bytes at most.
func (m *machine) append(c call, q request, most int, out []answer) []answer {
	old := m.values[q.keys[0]]
	if len(old)+len(q.value) > most {
		return append(out, answer{c, reply{status: statusTooLarge}})
	}
	out = append(out, answer{c, reply{status: statusOK}})
	if old == nil {
		return m.set(q.keys[0], q.value, out)
	}
	m.size += int64(len(q.value))
	// Room behind a value is the machine's own, for put leaves none and
	// append makes some; it is used once.
	m.values[q.keys[0]] = append(old, q.value...)
	return out
}

// put stores a value.
func (m *machine) put(key string, value []byte) {
	if value == nil {
		value = []byte{} // nil is no value
	}
	if m.counted {
		old, ok := m.values[key]
		if !ok {
			m.size += int64(entrySize + len(key))
		}
		m.size += int64(len(value) - len(old))
	}
	m.values[key] = value[:len(value):len(value)] // what is behind it is not the machine's
}

// count returns what the keys and all values take, and keeps it from now on.
func (m *machine) count() int64 {
	if !m.counted {
		m.counted, m.size = true, 0
		for key, value := range m.values {
			m.size += int64(entrySize + len(key) + len(value))
		}
		for _, q := range m.queues {
			for _, value := range q.values[q.head:] {
				m.size += int64(entrySize + len(value))
			}
		}
	}
	return m.size
}

// set stores a value and answers the calls that waited for its key.
func (m *machine) set(key string, value []byte, out []answer) []answer {
	m.put(key, value)
	return m.awake(key, out)
}

// awake answers calls that waited for key and now have all.
func (m *machine) awake(key string, out []answer) []answer {
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
		if !m.has(w, key) {
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
	switch w.op {
	case opGet:
		r.value = m.values[w.keys[0]]
	case opMultiGet:
		r.values = make([][]byte, len(w.keys))
		total := 0
		for i, k := range w.keys {
			r.values[i] = m.values[k]
			if total += len(r.values[i]); total > MaxValue {
				return answer{w.call, reply{status: statusTooLarge}}
			}
		}
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
	missing := w.keys
	if w.op != opPop {
		missing = m.missing(w.keys)
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
	if w.turn != nil {
		l := m.queues[key]
		l.pops.Remove(w.turn)
		if l.pops.Len() == 0 && l.len() == 0 {
			delete(m.queues, key)
		}
		return
	}
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
