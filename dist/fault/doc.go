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
// # How a lost rank is named
//
// Rank, host and PID of an error about a rank that has died, left or fallen silent are
// filled in by [NewRankError], from the [Member] that the group has for the rank. What is
// wrong in such an error is mended here:
//
//	host, PID      what the rank says of itself when the ranks meet: introduce in
//	               dist/internal/meeting/job.go. Of PyTorch's ranks: named in
//	               dist/internal/gloo/rendezvous.go. While the group of all ranks is formed,
//	               what the launcher says of its own ranks: tell in launch/worker.go
//	rank           its numbers in group and job: MemberOf and Among in member.go, called by
//	               member in dist/newgroup.go and sited in dist/failure.go
//	which rank     who was found to be lost: dist/internal/native/star.go, whose findings
//	               dist/internal/native/rank_error.go makes errors of; of PyTorch's ranks
//	               dist/internal/gloo/errors.go
//	how it ended   signal or exit code: the launcher's word, dist/internal/liveness
//	the words      rank.go, and [Member.String] in member.go; the causes are in cause.go
//	which error    of several failures the launcher's report names first: launch/culprit.go,
//	               which reads the words
//
// The line of the call is filled in by sited in dist/failure.go.
//
// Nothing here waits, sends or keeps anything.
package fault
