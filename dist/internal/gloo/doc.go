// SPDX-License-Identifier: Apache-2.0

// Package gloo moves the data of a group over the wire of PyTorch's Gloo process
// group, so that its members may be PyTorch ranks. [Open] meets the other members in
// a store and connects to each; the [Communicator] that it returns serves a
// [backend.Communicator]'s calls.
//
// # The wire
//
// Every pair of ranks has one connection, on which each side announces what it
// will send and grants what it will take: a message is sent only when its
// receiver has posted memory for it ([opRecvReady], a credit). Messages belong to
// slots: one for each collective, made of its kind and of its tag, and one for
// each tag of a message between two ranks. In a slot they go in order; slots do
// not wait for each other. A tag is the number of a collective, counted by every
// rank for itself, so all must call the same collectives in the same order: there
// is nothing in a message that says what it is a part of. What a peer asks for
// tells as much: a rank that grants bytes in a slot of the right tag and another
// kind is in another collective, and one that grants fewer or more bytes than
// come has another size. Both are a [fault.WireError] before anything is sent, for a
// PyTorch rank that gets more than it has room for aborts its process.
//
// # Files
//
//   - communicator.go, messages.go, monitored.go: the [Communicator] and its calls.
//   - schedule.go: which bytes go to and come from whom, in which order, as a pure function of
//     a call and a rank. schedule_test.go plays all ranks in a table. run.go does a schedule
//     over pairs, reduction.go reduces.
//   - pair.go: the connection to one peer, with its slots, a goroutine that reads, and one that
//     writes what does not go out at once (outbox.go). message.go has the form of messages.
//   - rendezvous.go: how the members come together; accept.go, dial.go: their connections.
//   - generation.go: the two ways in which PyTorch's ranks have connected. Since the middle of
//     2023 ([PerDevice]) a rank listens at one address, and the rank that dials says which
//     pair a connection is. Before ([PerPair]) a rank listens at one address for every peer.
//   - address.go, local_address.go: what ranks publish, and where this one listens.
//   - line_watch.go: hosts that are gone without a word. errors.go, tls.go: what the names say.
//
// # Caveats
//
// Nothing of the wire is authenticated. Nobody says goodbye on it: a rank that has
// died and one that has left its group look alike ([fault.ErrGone]).
//
// Sources: the formats as observed between running PyTorch 1.13 and 2.15 ranks.
package gloo
