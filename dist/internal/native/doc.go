// SPDX-License-Identifier: Apache-2.0

// Package native is Cohort's own backend for tensors in the memory of processors.
//
// A group has one communicator on each rank: a [Shm] where all ranks share memory, and a
// [Mesh] where they do not. Both implement [backend.Communicator]. A [star] of connections
// beside the data watches the ranks and spreads the news of a fault.
//
// # Shared memory
//
// The ranks of a [Shm] meet in a control segment: memory that all of them map. (Ranks that
// are goroutines of one process simply share it.) Each rank has a block in the segment that
// only it writes: its current call, counters of how far it has come, small payloads and
// staging slots. The other ranks read the block and wait for its counters. A collective
// takes three steps:
//
//  1. Offer: the rank puts its call and its data where the others look for them. Up to
//     some KiB of data lies beside the call. Data in a slab stays in place, for peers can
//     map it. Private data passes through the staging slots, in rounds.
//  2. Enter: the rank raises its entry flag, waits for the flags of all others, and
//     compares their calls with its own. This finds a mismatch at once. It also shows that
//     the previous call has ended everywhere, so that blocks and slots need no lock.
//  3. Transfer: each rank copies or reduces what it gets. The ranks share the work of an
//     all-reduce. Sums are made in the order of ranks, so that all ways give the same bits.
//
// Messages, and the pieces of plans, go through pipes: rings of slots between two ranks.
//
// # Mesh
//
// Any two ranks of a [Mesh] have a link of their own, which is opened when it is first
// needed: a connection, or between ranks of one node the pipes of a Shm inside the mesh.
// Every collective runs a [collective.Plan]. Its way from the call to the wire:
//
//	Mesh.Collective     checks that the group can be used
//	Mesh.remember       adds the call to the history, which finds mismatches
//	executor.execute    chooses the plan
//	executor.runPlan    prepares links and memory, and runs the plan's sends, receives and steps
//	link.sendPiece      one piece: into a pipe's slot, or
//	writePiece          as one frame of a connection
//
// # Forming a group
//
// The groups of a process share a [Fabric]: one TCP port, one unix socket, the addresses
// of all ranks of the job, and the table by which a new connection finds its group. The
// first frame of a connection, the hello, names the group. The members form a group by
// themselves: each connects to the group's rank 0, the hub of the star. Members that wait
// for one that does not come ask whether its process is there.
//
// # Faults
//
// While all is well, the star carries heartbeats only. The hub learns of a death by the end
// of a connection, of silence by missing heartbeats, and of everything else by a frame. It
// passes the news on, and every wait ends. A rank that finds a mismatch makes it known in
// the same way. The hub then settles what all ranks report: one pair of calls, each with its
// line in the program, which the hub asks the two ranks for. A rank that has waited in vain
// asks the missing ranks what they are doing.
//
// A fault travels as a rank, a kind and a text, of which Config.faultError (rank_error.go)
// makes the error of a call.
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
//
// # Waiting
//
// Every wait in shared memory has two parts: spin for some microseconds, then sleep until
// woken. A rank wakes others only if somebody sleeps. A sleeper looks up now and then for a
// fault, the end of its context, or the end of its time.
//
// # Files
//
//	shared memory  shm.go (Shm), shm_entry.go, shm_transfer.go, shm_stage.go (staging slots), shm_reduce.go,
//	               shm_segment.go (layout), shm_slabs.go (mappings), shm_pipe.go (slot rings), shm_given.go (bytes that ranks give),
//	               shm_spin.go and shm_futex_*.go (spinning and sleeping), shm_drain.go (lent memory after a failure),
//	               shm_processes.go and shm_goroutines.go (ranks of the two kinds)
//	mesh           mesh.go (Mesh), mesh_links.go, mesh_transfer.go, mesh_anysource.go (receive from any rank),
//	               mesh_partition.go (links that are cut), executor.go (runs plans), watchdog.go (time limits, stalled calls)
//	watch          star.go (hub and spokes), heartbeat.go, skew.go (late ranks), doing.go (what a rank is doing),
//	               mismatch.go, settlement.go, history.go (a rank's last calls), closing.go (the check before a leave),
//	               timeout.go, absence.go (members that have not come), procstate.go, rank_error.go (faults and their errors)
//	all            config.go, fabric.go (ports), endpoint.go (a group at its ports), wire.go (frames), explainer.go, host.go
//
// The files of the watch name neither Shm nor Mesh, and the shared memory does not name
// Mesh. They are one package because the three use some eighty names of each other, nearly
// all of them unexported: as packages they would have to export them.
//
// # Caveats
//
// Memory that other processes write is not trusted: a number is read once, checked, and
// used as it was read.
package native
