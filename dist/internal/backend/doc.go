// SPDX-License-Identifier: Apache-2.0

// Package backend holds the interfaces that a backend of package dist implements.
//
// A backend consists of two things. A [Job] brings the ranks of a job together and
// forms groups of them. A [Communicator] moves the data of one group. Package dist
// makes a Group of what both give, and knows no backend but by these interfaces.
//
//	this process           backend                        dist
//	Init            →      Start                 → Job
//	                       Job.Meet              → Roster   → Group of all ranks
//	Group.NewGroup  →      Job.NewGroup          → Plan     → Group of some ranks
//	                       Forming.Open          → Membership: Communicator, Rules
//	Group.AllReduce →      Communicator.Collective
//	Group.Close     →      Communicator.Close
//
// # Files
//
//   - job.go: forming groups, [Job], [Forming], and what goes in and comes out.
//   - communicator.go: moving data, [Communicator], and what one may do besides.
//   - rules.go: what a group's backend does not have or does in its own way, [Rules].
//   - errors.go: words that the errors of all backends share.
//
// # A new backend
//
// Three packages are examples: dist/internal/meeting forms groups of Cohort's own ranks,
// over communicators of dist/internal/native; dist/internal/pytorch joins PyTorch's job,
// over communicators of dist/internal/gloo. A new backend is one or two packages beside
// them and a row in the table in dist/backends.go, which maps the name that WithBackend
// is given to the backend's functions:
//
//   - A backend that meets in a way of its own, such as MPI, gives a [Start].
//   - A backend that moves the memory of a device between ranks that have met already,
//     such as NCCL, gives an [Open]. The ranks exchange in [Spec.Store] what they need to
//     connect. Its communicator is also a [Streamer] if calls go on after they return.
package backend
