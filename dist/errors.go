// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/gloo"
)

// Errors of operations, to be found with [errors.As]. They are pointers to
// structs, and the comments list the fields.
type (
	// RankError says that an operation cannot complete because of another
	// rank: it died, left, fell silent, or gave up.
	//
	//	type RankError struct {
	//		Rank   int    // the rank at fault, by its number in the group
	//		Host   string // where it ran, "" if not known
	//		PID    int    // its process, 0 if not known or in this process
	//		Group  string // the group's name
	//		Op     string // the operation that failed here, "all_reduce"; "" if none was under way
	//		Seq    uint64 // its number in the group, 0 if none was under way
	//		Site   string // where this rank called it, "path/file.go:88 pkg.Func"; "" if not known
	//		Signal string // the signal that ended the process, "killed"; "" if not told
	//		Last   *Doing // what a rank that has left did last, nil if not known
	//		Cause  error  // ErrDied, ErrLeft, ErrSilent, or what the rank said before it gave up
	//	}
	//	func (e *RankError) JobRank() int // the rank at fault, by its number in the job
	//	func (e *RankError) Unwrap() error // Cause
	RankError = collective.RankError
	// MismatchError says that two ranks called different things.
	//
	//	type MismatchError struct {
	//		Group  string   // the group's name
	//		Seq    uint64   // the number of the call in the group
	//		Here   RankCall // what this rank called, or the first of two others
	//		There  RankCall // what the other one called
	//		Parcel *Parcel  // set where but for a number of elements the calls fit
	//	}
	MismatchError = collective.MismatchError
	// RankCall is what one rank called, and where.
	//
	//	type RankCall struct {
	//		Rank  int    // by its number in the error's group
	//		Call  Call   // prints as "all_reduce sum of 4 float32"
	//		Site  string // where, "path/file.go:88 pkg.Func"; "" if not known
	//		Group string // on which group, if it was another than the error's
	//	}
	//	func (c RankCall) JobRank() int // the rank, by its number in the job
	RankCall = collective.RankCall
	// TimeoutError says that an operation did not complete in time, or was
	// cancelled, and which ranks it was waiting for.
	//
	//	type TimeoutError struct {
	//		Group   string   // the group's name
	//		Op      string   // the operation, "all_reduce"; "init" while a group is made
	//		Seq     uint64   // its number in the group
	//		Site    string   // where this rank called it, as in a RankError
	//		Missing []Member // the ranks that were waited for; none if it had not begun
	//		Instead []Doing  // what the first of them were doing, as far as they could be asked
	//		Cause   error    // why the wait ended: context.Canceled or DeadlineExceeded by errors.Is
	//	}
	//	func (e *TimeoutError) Timeout() bool // not cancelled
	//	func (e *TimeoutError) Unwrap() error // Cause
	TimeoutError = collective.TimeoutError
	// ReduceError says that the elements of a tensor are of a type that is not
	// reduced; the group is as it was.
	//
	//	type ReduceError struct {
	//		Op    ReduceOp // the reduction, such as Avg
	//		DType DType    // prints as the element type, "bool"
	//	}
	ReduceError = collective.ReduceError
	// Doing is what a rank was about while others waited for it.
	//
	//	type Doing struct {
	//		State    DoingState    // DoingUnknown and so on
	//		Group    string        // of the call, which need not be the one that others wait in
	//		Key      uint64        // stands for how the members of that group have met
	//		Call     Call          // prints as "all_reduce sum of 4 float32"
	//		Site     string        // where it called, "" if not known
	//		For      time.Duration // since when it has been at that
	//		ID       uint64        // tells this call from all others of the rank
	//		Blocking bool          // the goroutine that made the call waits for its end
	//		Solo     bool          // that goroutine has made all calls of the rank
	//		Called, Sent, Received uint64 // collectives called of the asker's group, messages to it and from it
	//		At       string        // the line at which its program is, where that was asked for
	//		Stack    string        // and the stack of the goroutine that makes its calls
	//	}
	Doing = collective.Doing
	// Parcel is what one rank has for another in a mismatched call.
	//
	//	type Parcel struct {
	//		From, To int // the ranks
	//		Have     int // how many elements the one has
	//		Want     int // how many the other expects
	//	}
	Parcel = collective.Parcel
	// Member is a rank as errors name it.
	//
	//	type Member struct {
	//		Rank int    // its number in the group
	//		Host string // where it runs, "" if not known
	//		PID  int    // its process, 0 if not known or in this process
	//	}
	//	func (m Member) JobRank() int // its number in the job
	//	func (m Member) String() string // "rank 1 (host h, pid 4711)"
	Member = collective.Member
	// WireError is the cause in a [RankError] about a rank of a group with PyTorch
	// members that has sent what no rank of this job can mean: another call than this
	// rank's, or one of another size, or nothing that Gloo knows.
	//
	//	type WireError struct {
	//		Sent  string // what it sent
	//		Why   string // what is wrong with it
	//		Peer  string // its host and address
	//		Other bool   // it is in another call than this rank
	//		Bytes, Want int64 // what it has for the message and what this rank has, where they differ
	//		Call  string // this rank's own call then: "all_reduce sum of 7 float32"
	//	}
	WireError = gloo.WireError
)

// What a rank was doing, in a [Doing].
const (
	DoingUnknown  = collective.DoingUnknown
	DoingNothing  = collective.DoingNothing
	DoingUnderWay = collective.DoingUnderWay
	DoingEnded    = collective.DoingEnded
	DoingFailed   = collective.DoingFailed
)

// Causes, to be found with [errors.Is].
var (
	// ErrClosed is the cause of calls on a group that this rank has closed.
	ErrClosed = collective.ErrClosed
	// ErrLeft is the cause when another rank has closed the group.
	ErrLeft = collective.ErrLeft
	// ErrDied is the cause when another rank's process has ended.
	ErrDied = collective.ErrDied
	// ErrSilent is the cause when nothing was heard of another rank for the
	// silence limit.
	ErrSilent = collective.ErrSilent
	// ErrGone is the cause when a rank of a group with PyTorch members has ended or
	// closed the group: its connection does not tell.
	ErrGone = collective.ErrGone
)

// ReduceOp is how a reduction makes one element of the ranks' elements: a number
// that the constants below and [PremulSum] give. Its zero value is [Sum].
//
//	func (r ReduceOp) Factor() float32 // of a PremulSum, else 1
//	func (r ReduceOp) Kind() ReduceOp  // without the factor: what ranks must agree on
//	func (r ReduceOp) String() string  // "sum", "premul_sum"
//	func (r ReduceOp) Valid() bool     // whether it is one of the reductions
type ReduceOp = collective.ReduceOp

// The reductions. Package dist's section Reductions says what they mean by the
// type of the elements.
const (
	Sum     = collective.Sum
	Product = collective.Product
	Min     = collective.Min
	Max     = collective.Max
	Avg     = collective.Avg  // the sum divided by the number of ranks
	BAnd    = collective.BAnd // bit by bit
	BOr     = collective.BOr
	BXor    = collective.BXor
)

// PremulSum is the sum of the ranks' elements, each multiplied by its rank's
// factor first. The factor is each rank's own and may differ between ranks.
func PremulSum(factor float32) ReduceOp { return collective.PremulSum(factor) }
