// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"slices"
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
	// opCancel ends a call of the same client that waits.
	opCancel   opcode = 7
	opAppend   opcode = 8
	opMultiGet opcode = 9
	opMultiSet opcode = 10
	opPush     opcode = 11
	opPop      opcode = 12
	opQueueLen opcode = 13
	opNumKeys  opcode = 14
	// opSetQuiet is a set without a reply; the machine gets an opSet.
	opSetQuiet opcode = 15
)

// waits says whether an operation may have to wait for others' requests.
func (o opcode) waits() bool {
	return o == opGet || o == opWait || o == opMultiGet || o == opPop || o == opPyTorchWait || o == opPyTorchBarrier
}

// isMulti says whether an operation has any number of keys, not one.
func (o opcode) isMulti() bool { return o == opWait || o == opMultiGet || o == opMultiSet }

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
	case opAppend:
		return "append"
	case opMultiGet:
		return "multi get"
	case opMultiSet:
		return "multi set"
	case opPush:
		return "queue push"
	case opPop:
		return "queue pop"
	case opQueueLen:
		return "queue len"
	case opNumKeys:
		return "num keys"
	case opSetQuiet:
		return "set async"
	}
	if name := o.pyTorch(); name != "" {
		return name
	}
	return "operation " + strconv.Itoa(int(o))
}

// request is one operation.
type request struct {
	op       opcode
	keys     []string // one, unless op.isMulti; for a number of keys, what they begin with
	value    []byte   // set, append, push: the value; compare and set: the desired one
	values   [][]byte // multi set: one for each key
	expected []byte   // nil: the key must not exist
	delta    int64
	need     int64 // PyTorch's barrier: what the counter must reach
}

// status is how an operation ended. The numbers are the wire's.
type status byte

const (
	statusOK         status = 1
	statusNo         status = 2 // compare and set: another value; delete: no such key
	statusNotInteger status = 3
	statusCancelled  status = 4
	statusLimit      status = 5 // a malformed request, or too many waits
	statusTooLarge   status = 6 // what would come of it is over MaxValue
)

// reply is how an operation ended and what it returns.
type reply struct {
	status  status
	value   []byte   // get, compare and set, pop; nil where there is none
	values  [][]byte // multi get
	number  int64    // add, and numbers of keys and of values in a queue
	missing []string // cancelled: keys that did not exist
}

// clone returns a request that shares no memory with q.
func (q request) clone() request {
	q.keys = slices.Clone(q.keys)
	q.value = bytes.Clone(q.value)
	q.expected = bytes.Clone(q.expected)
	q.values = slices.Clone(q.values)
	for i, v := range q.values {
		q.values[i] = bytes.Clone(v)
	}
	return q
}

// clone returns a reply that shares no memory with r.
func (r reply) clone() reply {
	r.value = bytes.Clone(r.value)
	r.values = slices.Clone(r.values)
	for i, v := range r.values {
		r.values[i] = bytes.Clone(v)
	}
	return r
}
