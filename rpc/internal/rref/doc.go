// SPDX-License-Identifier: Apache-2.0

// Package rref counts references across processes: the protocol under
// rpc.RRef, as a pure machine without goroutine, clock or connection.
//
// Every value has one owner, the node that holds it. Other nodes have forks,
// which the owner counts; the owner's own handles are counted as holds. A value
// is freed when no fork, no hold and no pass of it is left:
//
//   - A call that leaves its result at the owner makes the first fork
//     ([Machine.Remote] at the caller, [Machine.Create] at the owner).
//   - Who has a handle passes the reference on ([Machine.Share]) and thereby
//     pins its own handle until the receiver ([Machine.Adopt]) has a fork that
//     the owner knows of, and has said so. So a fork outlives whatever it was
//     passed on to, and no order of messages frees a value in use.
//   - A handle is released ([Machine.Release]): its fork goes once its passes are
//     settled.
//
// These are the rules of PyTorch's RRef protocol, with three differences. A
// fork is named by the node that has it, not by the one that made it: a counter
// for each pair of nodes. The owner can so tell forever, in a few ranges of
// numbers, which forks have been, and a message that comes late or twice cannot
// bring one back. A function that gets a reference need not wait until the
// owner knows of it, for the pass protects it. And forks are on lease.
//
// # Loss
//
// The calls that carry references are delivered once or not at all: a
// connection does so. The messages of the protocol itself may be lost, delayed,
// doubled and reordered. Each is idempotent and repeated until it is answered.
//
// # Death
//
// A node beats while it has forks at another. An owner that has not heard from
// a node for the lease drops its forks; should the node only have been away,
// its handles become lost, with a reason, and never read another value. A pass
// ends a lease after the call that carried it, whether or not it arrived. A
// child of a dead parent is safe, because it has a lease of time to tell the owner
// of itself. An owner that does not answer for two leases loses the handles on
// it. A machine whose own clock jumps, because its process was stopped, takes
// the jump for its own absence, not for that of the others.
//
// A process that is started again under the name of a dead one has a higher
// instance, with which it counts on: its first message ends what the other had.
//
// Nothing here locks: one goroutine at a time calls a machine's methods, with a
// time that never goes back, and carries out what [Machine.Actions] returns.
package rref
