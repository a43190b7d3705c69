// SPDX-License-Identifier: Apache-2.0

package dist

import "github.com/cohort-ml/cohort/dist/internal/collective"

// Errors of operations, to be found with [errors.As].
type (
	// RankError says that an operation cannot complete because of another
	// rank: it died, left, fell silent, or gave up.
	RankError = collective.RankError
	// MismatchError says that two ranks called different things.
	MismatchError = collective.MismatchError
	// RankCall is what one rank called, and where.
	RankCall = collective.RankCall
	// TimeoutError says that an operation did not complete in time, and
	// which ranks it was waiting for.
	TimeoutError = collective.TimeoutError
	// ReduceError says that the elements of a tensor are of a type that is not
	// reduced; the group is as it was.
	ReduceError = collective.ReduceError
	// Doing is what a rank was about while others waited for it.
	Doing = collective.Doing
	// Parcel is what one rank has for another in a mismatched call.
	Parcel = collective.Parcel
	// Member is a rank as errors name it.
	Member = collective.Member
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
)

// ReduceOp is how a reduction makes one element of the ranks' elements.
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
