// SPDX-License-Identifier: Apache-2.0

// Package fault is how operations of package dist fail: the errors, and what they tell
// of ranks and their calls.
//
// Every error is a pointer to a struct that [errors.As] finds. Package dist has aliases
// of all of them: dist.RankError is [RankError].
//
//		var lost *fault.RankError
//		if errors.As(err, &lost) {
//			log.Printf("rank %d of the job is lost: %v", lost.JobRank(), lost.Cause)
//		}
//
//	  - [RankError]: another rank died, left, fell silent or gave up. Its Cause says
//	    which: [ErrDied], [ErrLeft], [ErrSilent] and so on.
//	  - [MismatchError]: two ranks called different things.
//	  - [TimeoutError]: an operation took too long, or was cancelled.
//	  - [ReduceError]: a reduction has no meaning for a type of elements.
//	  - [WireError]: a PyTorch peer sent what it must not. It is the cause of a RankError.
//
// # How a rank is named
//
// [Member.String] makes the name of a rank for every error: "rank 1 (host h, pid 4711)".
// [RankError.Error] adds what happened to the rank: "died: signal killed", "is silent: …", "has left the group". A group numbers its
// own members, so that one process has several numbers: Rank is the number in the
// error's group, JobRank() the number in the job.
//
// Backends find out what happened to a rank: files fault.go of dist/internal/native and
// errors.go of dist/internal/gloo make the errors with [NewRankError]. Package dist
// fills in the members of the group with [Among] and the line of the call. Nothing here
// waits, sends or keeps anything.
package fault
