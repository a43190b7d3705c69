// SPDX-License-Identifier: Apache-2.0

// Package native is Cohort's own backend for processors' memory.
//
// Ranks of one node ([Shm]) meet in a control segment: a piece of memory that
// all of them map (or, for ranks that are goroutines of one process, plainly
// share). Each rank has a block there in which only it writes: its current
// call, counters of how far it has come, small payloads and staging slots.
// Others read the block and wait for its counters. Every collective begins
// with all ranks posting their call and reading everybody else's, which
// finds a mismatch at once and makes the end of the previous call certain, so
// that blocks and slots need no other protection. Then the data moves:
//
//   - up to some KiB it lies beside the call, and each rank reduces for itself;
//   - data in slabs that peers may map is reduced and copied in place, every
//     rank working on its share of everybody's data;
//   - private data passes through the staging slots, a pipeline of rounds.
//
// That is how all-reduce, broadcast and all-gather are done there. Everything
// else runs as a plan of package collective, whose pieces go through pipes
// between pairs of ranks, as messages do.
//
// Ranks of several nodes ([Ring]) run every collective as a plan. Each holds
// one TCP connection to the next rank; others are opened when a plan or a
// message first needs them. One executor runs plans on both kinds of link.
//
// Waiting is always the same: look for some microseconds, then sleep until
// woken; wake somebody only if somebody sleeps. A sleeper looks up now and
// then for a fault, a cancelled context, or the end of its time.
//
// Memory that other processes write is read as untrusted: numbers are checked
// before they are used, and used as read once.
package native
