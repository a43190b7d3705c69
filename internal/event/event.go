// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"fmt"
	"time"
)

// Kind says what has happened. The set is closed: who reads may switch over it.
type Kind uint8

// The kinds of events, and which fields of an [Event] they use besides Number, Kind, Time and Step.
const (
	Step       Kind = iota + 1 // a step was done: Done
	Value                      // a number that the program logs, or an evaluation's: Name, Value
	Histogram                  // a distribution: Name, Data is a *[Buckets]
	Text                       // a text that the program logs: Name, Text
	Image                      // a picture: Name, Text is its media type, Data its bytes
	PhaseEnded                 // a phase was left, such as the wait for data: Name, Span
	Collective                 // a call of a group has ended: Name is the operation, Group, Seq, Bytes, Span, Background
	Memory                     // what the rank holds: Held
	Checkpoint                 // a checkpoint is there: Text is its place
	Restart                    // the process goes on with a run: Text
	Fault                      // something failed: Text
	Note                       // something that a person should know: Text
	numKinds
)

var kindNames = [numKinds]string{"", "step", "value", "histogram", "text", "image", "phase", "collective", "memory", "checkpoint", "restart", "fault", "note"}

// String returns the name of the kind: "step", "collective".
func (k Kind) String() string {
	if k == 0 || k >= numKinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Event is one thing that has happened. The fields that its kind does not use are zero.
type Event struct {
	Number     uint64        // of the event in its stream, from 1
	Kind       Kind          //
	Time       time.Duration // since [Stream.Start]
	Step       int           // steps done by then
	Name       string        //
	Text       string        //
	Value      float64       //
	Span       Span          //
	Group      string        //
	Seq        uint64        // of the collective in its group
	Key        uint64        // of the group: the same on all of its members, nearly always another one of another group
	Peer       int           // of a message, the rank in the job; -1 for none
	Bytes      int64         // of data of this rank
	Background bool          // the program went on beside the call
	Done       StepNumbers   //
	Held       MemoryNumbers //
	Data       any           // must not be changed
}

// Span is when something took place, since [Stream.Start]. Called is when the program asked for it,
// Begun when it began, Ended when it was over.
type Span struct{ Called, Begun, Ended time.Duration }

// StepNumbers is what a step has come to.
type StepNumbers struct {
	Loss, LearningRate, GradNorm float64
	Size                         float64 // of the batches of all ranks
	Seconds, Epoch               float64
}

// MemoryNumbers is what a rank holds, in bytes; 0 for what is not known.
type MemoryNumbers struct {
	Tensors  int64         `json:"tensors"`  // in tensors' memory outside of Go's heap
	Heap     int64         `json:"heap"`     // in Go's heap
	Resident int64         `json:"resident"` // of the process, as the system counts
	GC       time.Duration `json:"gc_ns"`    // processor time of the garbage collector
	CPU      time.Duration `json:"cpu_ns"`   // processor time of the process
	FLOPs    int64         `json:"flops"`    // floating-point operations of products that the process has done,
	Again    int64         `json:"again"`    // and the part of them that was done a second time, to save memory
	Peak     float64       `json:"peak"`     // of them in a second, that the rank's threads reach at best
}

// Buckets is a histogram: Counts[i] values lie in (Edges[i-1], Edges[i]], the first from -inf on.
type Buckets struct {
	Count, NonFinite int
	Min, Max         float64
	Sum, Squares     float64
	Edges            []float64
	Counts           []float64
}

// streamKey is where a context has its stream.
type streamKey struct{}

// With returns a context with the stream.
func With(ctx context.Context, s *Stream) context.Context {
	return context.WithValue(ctx, streamKey{}, s)
}

// From returns the stream of a context, nil if it has none.
func From(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}

// Kinds returns all kinds.
func Kinds() []Kind {
	kinds := make([]Kind, 0, numKinds)
	for k := Step; k < numKinds; k++ {
		kinds = append(kinds, k)
	}
	return kinds
}
