// SPDX-License-Identifier: Apache-2.0

// Package mpi joins a job that mpirun or srun has started, and moves the data of its groups by
// the MPI of that job: it is the [backend.Start] of the backend "mpi". The library is found when
// the program runs. Only a program that was built with -tags mpi (or cuda) can do that.
//
// The MPI gives each process its rank, and carries where rank 0 listens, with a token, to all
// others. From there on the ranks meet as Cohort's own do (package meeting): each group has a
// star of connections beside the MPI, which has the heartbeats, the news of deaths and the
// settlement of mismatches. The group's communicator is a [native.Mesh] whose [native.Carrier]
// is a communicator of the MPI.
//
// # Collectives
//
// A collective posts two operations: a comparison of the ranks' calls, and the data. MPI does not
// compare calls, and ranks whose calls differ would wait for ever or get wrong numbers. Ranks wait
// by looking (MPI_Testsome) and sleep between looks when it takes long, so that a fault, a context
// or the time limit ends the wait. A look sees both operations: a comparison that finds a
// difference ends the wait for data that may never come.
//
// Up to 4 ranks move the data of reductions and all-gathers by messages of the MPI between each
// two of them. More ranks call the MPI's collectives. MPIs have slow nonblocking forms of some
// collectives: these are called in their blocking form, on a goroutine of their own.
//
// What an MPI lacks is done by Cohort's plans, with the MPI's messages: with more than 4 ranks,
// reductions of bfloat16, float16 and bool, and Min and Max of floats (MPI does not say what they
// make of NaN); PremulSum, uneven gathers, scatters and exchanges, and reductions under
// WithDeterministic.
//
// # Files
//
//   - job.go: [Start], the ranks' agreement on where they meet, and the end of the job.
//   - library.go: which MPI is loaded, and its functions.
//   - abi.go: the constants of the three kinds of MPI.
//   - communicator.go: comparisons and messages.
//   - requests.go: what the MPI has under way, and the waits for it.
//   - collective.go: the MPI's collectives.
//   - exchange.go: the collectives of a few ranks.
//
// # Caveats
//
// An MPI begins once in a process and does not survive the loss of a rank: after a fault the
// groups return errors, and then the process should end. A call that is left behind may still
// write the memory that it was given. So that memory is kept, but a tensor whose memory is used
// again may be written.
package mpi
