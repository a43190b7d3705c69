// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"slices"
	"strconv"
)

// Operations of PyTorch's store that differ from Cohort's. They are not on
// Cohort's wire, and no File logs them.
const (
	opPyTorchCAS opcode = 128 + iota
	// opPyTorchWait waits for keys, or for queues of their names with something in them.
	opPyTorchWait
	// opPyTorchCheck says at once what opPyTorchWait would wait for.
	opPyTorchCheck
	// opPyTorchGet returns the values of keys at once, nil for those that are missing.
	opPyTorchGet
	// opPyTorchPop takes a value from a queue if there is one.
	opPyTorchPop
	opPyTorchList
	// opPyTorchNumKeys counts as PyTorch does: with the counter of those who have joined.
	opPyTorchNumKeys
	// opPyTorchBarrier adds to a counter and waits until it has reached what is needed.
	opPyTorchBarrier
	// opPyTorchAdd adds to the number at the beginning of a value, and wraps around.
	opPyTorchAdd
	// opPyTorchFileAdd is that of a FileStore, for which an empty value is 0.
	opPyTorchFileAdd
	// opPyTorchAppend appends to what a server of PyTorch's clients may hold.
	opPyTorchAppend
)

// unlisted are the keys by which a server tells of itself, uncounted those that no user of
// the store has set.
var (
	unlisted  = []string{PyTorchHosted, PyTorchSpoken1, PyTorchSpoken2, PyTorchMet, PyTorchMixed}
	uncounted = append([]string{pyTorchRaw + joinKey, refKey, cleanupKey}, unlisted...)
)

// pyTorch names one of these, and nothing else.
func (o opcode) pyTorch() string {
	switch o {
	case opPyTorchCAS:
		return "compare set"
	case opPyTorchWait:
		return "wait for keys or queues"
	case opPyTorchCheck:
		return "check"
	case opPyTorchGet:
		return "get what is there"
	case opPyTorchPop:
		return "queue pop at once"
	case opPyTorchList:
		return "list keys"
	case opPyTorchNumKeys:
		return "count keys"
	case opPyTorchBarrier:
		return "barrier"
	case opPyTorchAdd, opPyTorchFileAdd:
		return "add"
	case opPyTorchAppend:
		return "append"
	}
	return ""
}

// has says whether a waiter has what it wants of a key.
func (m *machine) has(w *waiter, key string) bool {
	switch w.op {
	case opPyTorchWait:
		return m.holds(key)
	case opPyTorchBarrier:
		n, ok := stoll(m.values[key])
		return ok && n >= w.need
	}
	_, ok := m.values[key]
	return ok
}

// holds says whether there is a key, or a queue that is not empty.
func (m *machine) holds(key string) bool {
	if _, ok := m.values[key]; ok {
		return true
	}
	l := m.queues[key]
	return l != nil && l.len() > 0
}

// applyPyTorch is apply for PyTorch's operations.
func (m *machine) applyPyTorch(c call, q request, out []answer) []answer {
	switch q.op {
	case opPyTorchCAS:
		return m.compareAndSetPyTorch(c, q, out)
	case opPyTorchWait:
		w := &waiter{call: c, op: q.op, keys: q.keys}
		if m.settle(w) {
			return append(out, m.answer(w))
		}
		m.remember(w)
		return out
	case opPyTorchCheck:
		for _, k := range q.keys {
			if !m.holds(k) {
				return append(out, answer{c, reply{status: statusNo}})
			}
		}
		return append(out, answer{c, reply{status: statusOK}})
	case opPyTorchGet:
		r := reply{status: statusOK, values: make([][]byte, len(q.keys))}
		for i, k := range q.keys {
			r.values[i] = m.values[k]
		}
		return append(out, answer{c, r})
	case opPyTorchPop:
		n := 0
		if l := m.queues[q.keys[0]]; l != nil {
			n = l.len()
		}
		v, _ := m.pop(q.keys[0])
		return append(out, answer{c, reply{status: statusOK, number: int64(n), value: v}})
	case opPyTorchList:
		return m.listPyTorch(c, out)
	case opPyTorchNumKeys:
		n := m.numKeys("")
		if _, ok := m.values[pyTorchRaw+joinKey]; ok {
			n++
		}
		return append(out, answer{c, reply{status: statusOK, number: n}})
	case opPyTorchBarrier:
		return m.barrier(c, q, out)
	case opPyTorchAppend:
		return m.append(c, q, maxServedValue, out)
	case opPyTorchAdd, opPyTorchFileAdd:
		return m.addPyTorch(c, q, out)
	}
	return append(out, answer{c, reply{status: statusLimit}})
}

func (m *machine) compareAndSetPyTorch(c call, q request, out []answer) []answer {
	old, ok := m.values[q.keys[0]]
	switch {
	case ok && !bytes.Equal(old, q.expected):
		return append(out, answer{c, reply{status: statusNo, value: old}})
	case !ok && len(q.expected) > 0:
		// PyTorch answers with what was expected, though there is nothing.
		return append(out, answer{c, reply{status: statusNo, value: q.expected}})
	}
	out = append(out, answer{c, reply{status: statusOK, value: q.value}})
	return m.set(q.keys[0], q.value, out)
}

// listPyTorch answers with all keys that PyTorch's server would list.
func (m *machine) listPyTorch(c call, out []answer) []answer {
	r := reply{status: statusOK, values: make([][]byte, 0, len(m.values))}
	total := 0
	for k := range m.values {
		if slices.Contains(unlisted, k) {
			continue
		}
		if total += len(k); total > MaxValue {
			return append(out, answer{c, reply{status: statusTooLarge}})
		}
		r.values = append(r.values, []byte(k))
	}
	return append(out, answer{c, r})
}

func (m *machine) addPyTorch(c call, q request, out []answer) []answer {
	old, ok := m.values[q.keys[0]]
	n, isNumber := stoll(old)
	if ok && !isNumber && (q.op == opPyTorchAdd || len(old) > 0) {
		return append(out, answer{c, reply{status: statusNotInteger}})
	}
	n += q.delta
	out = append(out, answer{c, reply{status: statusOK, number: n}})
	return m.set(q.keys[0], strconv.AppendInt(nil, n, 10), out)
}

// addsNothing says whether a PyTorch process's add leaves the value as it is, to the byte.
func (m *machine) addsNothing(q *request) bool {
	if q.delta != 0 {
		return false
	}
	n, ok := stoll(m.values[q.keys[0]])
	return ok && string(strconv.AppendInt(nil, n, 10)) == string(m.values[q.keys[0]])
}

// barrier counts a caller in, and answers those who have waited for the last one.
func (m *machine) barrier(c call, q request, out []answer) []answer {
	key := q.keys[0]
	if q.delta != 0 {
		n := int64(0)
		if old, ok := m.values[key]; ok {
			if n, ok = stoll(old); !ok {
				return append(out, answer{c, reply{status: statusNotInteger}})
			}
		}
		out = m.set(key, strconv.AppendInt(nil, n+q.delta, 10), out)
	}
	w := &waiter{call: c, op: q.op, keys: q.keys, need: q.need}
	if m.settle(w) {
		return append(out, m.answer(w))
	}
	m.remember(w)
	return out
}
