// SPDX-License-Identifier: Apache-2.0

// Package rref counts references across processes. It is the protocol under rpc.RRef, as a
// pure machine without goroutine, clock or connection.
//
// Each value has one owner, the node that holds it. Other nodes have forks of it, which the
// owner counts. The owner's own handles are counted as holds. The owner frees a value when
// it has no fork, no hold and no pass left:
//
//   - A call that leaves its result at the owner makes the first fork ([Machine.Remote] at
//     the caller, [Machine.Create] at the owner).
//   - A node that has a handle passes the reference on ([Machine.Share]). That pins the
//     handle until the receiver ([Machine.Adopt]) has a fork that the owner knows, and has
//     said so. So a handle outlives the passes that were made of it, and no order of
//     messages frees a value in use.
//   - A node releases a handle ([Machine.Release]). Its fork ends when its passes are settled.
//
// These are the rules of PyTorch's RRef protocol, with three differences. First, the node
// that has a fork names it, by a counter for each pair of nodes, not the node that made it.
// So the owner remembers all forks that have ended in a few ranges of numbers, and a late or
// repeated message cannot bring a fork back. Second, a function that gets a reference need
// not wait until the owner knows of it, because the pass protects it. Third, forks have a
// lease.
//
// # Loss
//
// A connection delivers each call that carries references once or not at all. The messages
// of the protocol itself may be lost, delayed, doubled and reordered. Each of them is
// idempotent, and repeated until it is answered.
//
// # Death
//
// A node sends heartbeats to a node at which it has forks. An owner that has not heard from
// a node for the lease drops the node's forks. If that node was only away, its handles become
// lost, with a reason, and never read another value. A pass ends one lease after the call
// that carried it, whether or not it arrived. The fork of a node whose parent has died is
// safe: it has a lease of time to reach the owner. A node whose owner does not answer for two
// leases loses its handles on that owner. If a machine's clock jumps because its process was
// stopped, it counts the jump as its own absence, not as that of the others.
//
// A process that is started again under the name of a dead one has a higher instance. Its
// first message ends the forks of the instance before.
//
// Nothing here locks. One goroutine at a time calls a machine's methods, with a time that
// never goes back, and carries out what [Machine.Actions] returns.
package rref
