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
//   - up to some KiB it lies beside the call, and who gets it copies or reduces
//     for itself;
//   - data in slabs that peers may map is copied, or reduced, straight from
//     where it is to where it goes; all ranks share the work of an all-reduce;
//   - private data passes through the staging slots, a pipeline of rounds.
//
// Each rank says with its call which of these ways leads to its data. Sums are
// made in the order of ranks whatever the ways, so that they have the same bits.
// Messages, and the pieces of plans, go through pipes between pairs of ranks.
//
// Ranks that do not all share memory ([Mesh]) run every collective as a plan.
// Any two have a link of their own, opened when it is first needed: a
// connection, or between ranks of a node the pipes of a Shm that the mesh has
// inside. One executor runs plans on both kinds of link.
//
// What the groups of a process have in common is its [Fabric]: a TCP port, a
// unix socket, the addresses of all ranks of the job, and the distribution of
// the connections that come by the group that their first frame names. A group
// is formed by its members alone: each has one connection to the group's rank
// 0 (the [star]), which carries nothing while all is well and by which every
// member learns within moments that another has died, failed or left. What else
// is connected is what is used.
//
// Who finds a mismatch makes it known like any fault. The hub of the star then
// settles what all ranks say of it ([settlement]): one pair of calls, each with
// the line of the program that made it, which the ranks are asked for. In the
// same way a rank that waits in vain asks what others are doing ([asks]). Before
// something is wrong neither sends anything.
//
// Waiting is always the same: look for some microseconds, then sleep until
// woken; wake somebody only if somebody sleeps. A sleeper looks up now and
// then for a fault, a cancelled context, or the end of its time.
//
// Memory that other processes write is read as untrusted: numbers are checked
// before they are used, and used as read once.
package native
