// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"unsafe"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// version is that of the methods below. Servers refuse clients of others.
const version = 1

// The methods of a server. docs/parameter-server.md describes them for clients in other
// languages.
var (
	openMethod   = rpc.NewMethod[openArgs, openReply]("ps.Open")
	pullMethod   = rpc.NewMethod[pullArgs, pullReply]("ps.Pull")
	servedPull   = rpc.NewMethod[pullArgs, pullAnswer]("ps.Pull") // as a server has it
	pushMethod   = rpc.NewMethod[pushArgs, pushReply]("ps.Push")
	servedPush   = rpc.NewMethod[pushArgs, pushAnswer]("ps.Push")
	leaveMethod  = rpc.NewMethod[leaveArgs, struct{}]("ps.Leave")
	statusMethod = rpc.NewMethod[struct{}, Status]("ps.Status")
	snapMethod   = rpc.NewMethod[struct{}, snapReply]("ps.Snapshot")
	beginMethod  = rpc.NewMethod[beginArgs, struct{}]("ps.Begin")
	insertMethod = rpc.NewMethod[insertArgs, struct{}]("ps.Insert")
	lookupMethod = rpc.NewMethod[lookupArgs, lookupReply]("ps.Lookup")
)

// openArgs is what a client says before anything else.
type openArgs struct {
	Version  int
	Server   int    // which one the client takes it for
	Client   uint64 // random, of this client alone
	Worker   int    // -1: a reader, which pushes nothing
	Settings []byte // JSON of settings
}

// openReply is what the server knows of that client.
type openReply struct {
	History  uint64 // random, of the server's data
	Life     uint64 // random, of the server's process
	Number   uint64 // of the client's last push, 0 for none
	Next     int64  // the worker's next step
	Settings []byte // as agreed
}

// pullArgs asks for rows of several tables. Life is that of the server to which the client
// has said who it is: another process at the address answers that it must say so again. 0
// is any.
type pullArgs struct {
	Life   uint64 `rpc:"Life,optional"`
	Worker int
	Step   int64
	Parts  []pullPart
}

// pullPart asks for rows of one table: those of Keys, int64 [n], or with Offsets, int64
// [bags], their sums over bags, of which bag i begins at Offsets[i].
type pullPart struct {
	Table   string
	Keys    *tensor.Tensor
	Offsets *tensor.Tensor `rpc:"Offsets,optional"`
}

// pullReply has a tensor for each part: [n, width] of the table's dtype on the wire, uint8
// [n, width+4] for int8 with the row's scale, float32 [bags, width] for bags.
type pullReply = pulled[*tensor.Tensor]

// pullAnswer is pullReply before it is sent.
type pullAnswer = pulled[*rpc.LazyTensor]

type pulled[T any] struct {
	Step int64 // how many steps the server has applied
	// Behind is how many steps before that of the pull the slowest worker has not pushed.
	Behind int64 `rpc:"Behind,optional"`
	Rows   []T
}

// pushArgs are the pushes of a client behind each other. Number is that of the first. Kept
// wants an answer without rows once the server has the pushes: with batched updates that is
// before the batch is applied.
type pushArgs struct {
	Life   uint64 `rpc:"Life,optional"`
	Kept   bool   `rpc:"Kept,optional"`
	Client uint64
	Worker int
	Number uint64
	Pushes []pushItem
}

// pushItem is the gradients of a step of a worker.
type pushItem struct {
	Step  int64
	Parts []pushPart
}

// pushPart is the gradient of a table: Keys int64 [n], increasing, and Grads [n, width],
// float32, bfloat16 or float16.
type pushPart struct {
	Table string
	// LR is the learning rate from this push on, 0 for that of the last push that had one,
	// or else the optimizer's.
	LR          float64 `rpc:"LR,optional"`
	Keys, Grads *tensor.Tensor
}

// pushReply says what a server has done with the last push. With batched updates Rows are
// the new rows of its parts. Waiting is how many keys of the updates that the pushes have
// made had no effect: their rows begin with a later push.
type pushReply = pushed[*tensor.Tensor]

// pushAnswer is pushReply before it is sent.
type pushAnswer = pushed[*rpc.LazyTensor]

type pushed[T any] struct {
	Step    int64
	Rows    []T
	Waiting int64 `rpc:"Waiting,optional"`
}

// leaveArgs says that a worker makes no more steps.
type leaveArgs struct {
	Client uint64
	Worker int
}

// snapReply says what a snapshot has.
type snapReply struct{ LSN uint64 }

// bytesOf lends the memory of a contiguous tensor of the CPU.
func bytesOf(t *tensor.Tensor) ([]byte, error) {
	l, err := t.Lend()
	if err != nil {
		return nil, err
	}
	return l.Data, nil
}

// int64sOf lends the elements of an int64 tensor of one dim.
func int64sOf(t *tensor.Tensor, what string) ([]int64, error) {
	if t == nil || t.DType() != tensor.Int64 || t.NumDims() != 1 || !t.IsContiguous() {
		return nil, fmt.Errorf("%s: want int64 [n], got %s", what, shapeText(t))
	}
	b, err := bytesOf(t)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(b))), t.NumElems()), nil
}

// float32sOf lends the elements of a float32 tensor.
func float32sOf(t *tensor.Tensor) ([]float32, error) {
	b, err := bytesOf(t)
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), t.NumElems()), nil
}

// shapeText describes a tensor that is not what was wanted.
func shapeText(t *tensor.Tensor) string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%v %v", t.DType(), t.Shape())
}
