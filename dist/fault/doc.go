// SPDX-License-Identifier: Apache-2.0

// Package fault is how operations of package dist fail: the errors, and what they tell
// of ranks and their calls.
//
// Every error is a pointer to a struct that [errors.As] finds. Package dist has aliases
// of all of them: dist.RankError is [RankError].
//
//	var lost *fault.RankError
//	if errors.As(err, &lost) {
//		log.Printf("rank %d of the job is lost: %v", lost.JobRank(), lost.Cause)
//	}
//
// The errors are:
//
//   - [RankError]: another rank died, left, fell silent or gave up. Its Cause says
//     which: [ErrDied], [ErrLeft], [ErrSilent] and so on.
//   - [MismatchError]: two ranks called different things.
//   - [TimeoutError]: an operation took too long, or was cancelled.
//   - [ReduceError]: a reduction has no meaning for a type of elements.
//   - [DeviceError]: no backend of the group moves the memory of a tensor's device.
//   - [PyTorchError]: PyTorch's ranks of the group do not have an operation.
//   - [WireError]: a PyTorch peer sent what it must not. It is the cause of a RankError.
//
// # How a dead rank is named
//
// An error about a dead rank is made in three places, which are the ones to change:
//
//   - The name: [Member.String] makes it for every error, "rank 1 (host h, pid 4711)". A
//     group numbers its own members, so that one process has several numbers. Rank is
//     the number in the error's group, JobRank() the number in the job.
//   - The words after the name: [RankError.Error] says what happened to the rank, "died:
//     signal killed", "is silent: …", "has left the group". The causes are in cause.go.
//   - The finding: the star of dist/internal/native and the connections of
//     dist/internal/gloo find out that a rank is gone. dist/internal/native/fault.go and
//     dist/internal/gloo/errors.go make the error with [NewRankError]. The launcher's
//     word of how a process ended comes through dist/internal/liveness.
//
// Package dist fills in the members of the group with [Among], and the line of the call.
// Nothing here waits, sends or keeps anything.
package fault
