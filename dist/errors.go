// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

// Errors of operations, to be found with [errors.As]. All are pointers to structs
// of package [fault], which documents their fields and methods.
type (
	// RankError says that an operation cannot complete because of another rank,
	// and names the rank: see [fault.RankError].
	RankError = fault.RankError
	// MismatchError says that two ranks called different things: see
	// [fault.MismatchError].
	MismatchError = fault.MismatchError
	// TimeoutError says that an operation did not complete in time, or was
	// cancelled, and for which ranks it waited: see [fault.TimeoutError].
	TimeoutError = fault.TimeoutError
	// ReduceError says that a reduction has no meaning for a type of elements; the
	// group stays usable: see [fault.ReduceError].
	ReduceError = fault.ReduceError
	// PyTorchError says that PyTorch's Gloo does not have what a group with PyTorch members was
	// asked for; the group stays usable: see [fault.PyTorchError].
	PyTorchError = fault.PyTorchError
	// DeviceError says that a tensor is on a device whose memory no backend of the group
	// moves; the group stays usable: see [fault.DeviceError].
	DeviceError = fault.DeviceError
	// WireError is the cause in a [RankError] about a peer that sent what PyTorch's
	// wire does not allow: see [fault.WireError].
	WireError = fault.WireError
)

// What errors tell of ranks.
type (
	// Member is a rank as errors name it: see [fault.Member].
	Member = fault.Member
	// RankCall is what one rank called, and where: see [fault.RankCall].
	RankCall = fault.RankCall
	// Parcel is what one rank has for another in a mismatched call: see
	// [fault.Parcel].
	Parcel = fault.Parcel
	// Doing is what a rank was doing while others waited for it: see [fault.Doing].
	Doing = fault.Doing
)

// What a rank was doing, in a [Doing].
const (
	DoingUnknown  = fault.DoingUnknown
	DoingNothing  = fault.DoingNothing
	DoingUnderWay = fault.DoingUnderWay
	DoingEnded    = fault.DoingEnded
	DoingFailed   = fault.DoingFailed
)

// Causes, to be found with [errors.Is].
var (
	// ErrClosed is the cause of calls on a group that this rank has closed.
	ErrClosed = fault.ErrClosed
	// ErrLeft is the cause when another rank has closed the group.
	ErrLeft = fault.ErrLeft
	// ErrDied is the cause when another rank's process has ended.
	ErrDied = fault.ErrDied
	// ErrSilent is the cause when nothing was heard of another rank for the
	// silence limit.
	ErrSilent = fault.ErrSilent
	// ErrGone is the cause when a rank of a group with PyTorch members has ended or
	// closed the group: its connection does not tell which.
	ErrGone = fault.ErrGone
)

// ReduceOp is how a reduction makes one element of the ranks' elements. Its zero
// value is [Sum]. The constants below and [PremulSum] are its values, and
// [operation.ReduceOp] documents its methods.
type ReduceOp = operation.ReduceOp

// The reductions. Package dist's section Reductions says what they mean by the
// type of the elements.
const (
	Sum     = operation.Sum
	Product = operation.Product
	Min     = operation.Min
	Max     = operation.Max
	Avg     = operation.Avg  // the sum divided by the number of ranks
	BAnd    = operation.BAnd // bit by bit
	BOr     = operation.BOr
	BXor    = operation.BXor
)

// PremulSum is the sum of the ranks' elements, each multiplied by its rank's
// factor first. The factor is each rank's own and may differ between ranks.
func PremulSum(factor float32) ReduceOp { return operation.PremulSum(factor) }
