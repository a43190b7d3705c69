// SPDX-License-Identifier: Apache-2.0

// Package rendezvous joins the nodes of a job on several machines: the nodes find each
// other, agree on who takes part, and go on when that changes.
//
// # The picture
//
// Each node has one launcher process, its agent (package launch), which starts the ranks of
// that node. The agents share a store (package dist/store, or etcd). It holds three things:
//
//   - the [State], a document that says which nodes take part in which round;
//   - one [Card] for each node, which only that node writes, at every heartbeat, and which
//     says what the ranks of the node do;
//   - the list of the nodes that have arrived.
//
// A round is one run of all ranks on one set of nodes. When the set changes, or a rank fails,
// the round ends on every node. The next round begins with the nodes that are there.
//
// One node is the leader, called the decider here. It reads the cards and writes the next
// state, by compare-and-set, so that of two deciders only one succeeds. The other nodes
// follow. The state names the decider. When the decider's card has not changed for too long,
// another node takes its place. So any agent may die. Only the store has to live; etcd
// survives the loss of any single machine.
//
//	           all are ready, and enough, and the last call is over
//	gathering ──────────────────────────────────────────────────► running
//	    ▲                                                            │
//	    └── a node came, left, fell silent, or its ranks failed ◄────┤
//	                                                                 ▼
//	               too few for too long, or too many failures ──► closed ◄── all ranks ended well
//
// # Time
//
// No clocks of two machines are compared. A card is old when the reader's own clock says
// that the card has not changed for [Timing.Lost]. A node that cannot write its card kills
// its ranks after [Timing.Fence], which is shorter: before the others can have given it up.
// So ranks of two rounds never run at the same time.
//
// The causes of a round's end count differently. A failure of a rank counts against the
// restarts of the job. A node that comes, leaves or is lost does not count, unless the number
// of nodes is fixed. When a node is lost, ranks of other nodes fail too, and say so earlier.
// So the decider judges a failure only when every node of the round has answered or is lost.
//
// # Files
//
//	on this host        nodes.go ([Nodes], for launch.Config.Nodes), participant.go (the loop),
//	                    joinfailure.go (a node that cannot come tells those that wait for it)
//	decisions, pure     machine.go (one node), decider.go (the leader)
//	data, pure          state.go, card.go, timing.go, wire.go (JSON, with limits)
//	the store           meeting.go (which store, who serves it), storeclient.go (calls to it)
//
// The pure files have no goroutine, clock or socket: events go in, actions come out. Tests
// play ten thousand nodes and hundreds of histories with them.
//
// # Caveats
//
// A process that may write to the store decides where ranks run, but not which program they
// run: that comes from the command line of each agent. An agent that is stopped (SIGSTOP)
// while its ranks run cannot kill them; they fail because the other nodes stop theirs. Nodes
// that meet in a file add some hundred bytes to it each second.
package rendezvous
