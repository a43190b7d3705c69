// SPDX-License-Identifier: Apache-2.0

// Package link has the connections of an agent: how agents meet, find and recognize each
// other, and how messages go over a connection.
//
// An agent has one [Endpoint]. It listens, meets the other agents in a store or by a list,
// and gives a [Peer] for each. A connection carries calls one way, and the calling side
// dials: [Peer.Connect] returns the [ClientConn] on which this agent calls the peer, and
// [Handler.Serve] gets the [ServerConn] of a peer that calls this agent. So two agents that
// call each other have two connections.
//
// Package rpc has what is on top: methods, handlers, futures, streams, references. It
// gives an endpoint a [Config] (who the agent is) and a [Handler] (what becomes of incoming
// connections and of lost ones). To make a call it encodes a message of package wire, and
// [ClientConn.Start] sends that and remembers the [Call] until its answer has come. To
// answer calls it implements [Server]; to hold conversations, [Stream]. Errors are those of
// package wire, or plain ones; rpc adds the method and the peer.
//
// # Files
//
//   - endpoint.go: ports, the job's token, opening and closing
//   - meeting.go: how agents find each other, in a store or by a list
//   - peer.go, dial.go: another agent, and how a connection to it is made
//   - handshake.go: the first frames of a connection
//   - identity.go: which process an agent is, when one has taken the place of another
//   - client.go, call.go: a connection on which this agent calls; calls and their deadlines
//   - server.go: a connection on which a peer calls
//   - sender.go: the writing and the reading side, which both have
//   - oneway.go: messages without an answer
//   - spin.go: when to poll before a thread sleeps
//
// # Caveats
//
// A connection has a goroutine that reads. A caller whose call is the only one reads its
// own answer in place of that goroutine, which saves a wake-up; see [ClientConn.Start].
// A connection on which a message stands still, in either direction, for [StallTime] after
// a call on it was late, ends: all calls would wait behind that message.
package link
