// SPDX-License-Identifier: Apache-2.0

// Package meeting brings Cohort's own ranks together: it is the [backend.Job] of the
// backend "native".
//
// The ranks of a job meet in a key-value store, which rank 0 serves unless there is one.
// Each rank puts an introduction there: its host, its node, what its options are. All wait
// for the list of all introductions, compare them, and exchange addresses in the same way.
// A rank that fails says so in the store, so that the others fail with its words and do not
// wait for it. After that, package native opens a communicator for each group.
//
// Ranks that are goroutines of one process need no meeting: see [Goroutines]. Ranks of
// Cohort in a job of another backend are its [Guests].
//
// # Files
//
//   - job.go: [Start], the meeting of all ranks, and how a communicator is opened.
//   - place.go: who this process is, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT or a URL.
//   - store.go: the store in which the ranks meet.
//   - introduction.go: what ranks tell each other, and why two ranks cannot be in one job.
//   - links.go: ports, interfaces, encryption, and which ranks share memory.
//   - failure.go: how a rank that cannot form the group tells the others why.
//   - waiting.go: what a rank writes when it waits long for others to join.
//   - group.go: forming a group of some ranks.
//   - awaited.go, absent.go: who has not come to a group of some ranks, and who cannot come.
//   - carried.go: jobs whose data another system moves, such as an MPI.
//   - goroutines.go, guests.go: ranks of one process, and ranks beside those of PyTorch.
//
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
package meeting
