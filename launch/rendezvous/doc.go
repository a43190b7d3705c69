// SPDX-License-Identifier: Apache-2.0

// Package rendezvous is how the nodes of a job find each other, agree on who takes
// part, and go on when that changes.
//
// # The picture
//
// One agent a node (package launch) starts the ranks of that node. The agents
// share a store (package dist/store, or etcd) and in it three things: the [State],
// a document that says who takes part in which round; one [Card] for each agent,
// which it alone writes, once a beat, with what its ranks do; and a list of those
// who have arrived. A round is one run of all ranks on one set of nodes. When the
// set changes, or a rank fails, the round ends on every node and the next one
// begins with the nodes that are there.
//
// One of the agents decides: it looks at the cards and writes the state, by
// compare-and-set, so that no two deciders can both have their way. The others
// follow. Who decides is in the state; when its card stands still for too long,
// another agent takes its place. So any agent may die, whatever it was; the store
// alone has to live, and in etcd it does so without any single machine.
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
// No two clocks are compared. A card is old when the reader's own clock says that
// it has stood still. A node whose card cannot be written any more kills its ranks
// before others can have given it up ([Timing.Fence] is shorter than
// [Timing.Lost]), so ranks of two rounds never run at once.
//
// What ends a round is told apart. A failure of a rank counts against the
// restarts that a job has; a node that comes, leaves or is lost does not, unless
// the number of nodes is fixed. Since ranks fail because a node is lost, and are
// quicker to say so, a failure is judged when every node of the round has answered
// or is lost.
//
// # Pieces
//
// state.go, card.go, timing.go, wire.go, decider.go and machine.go are pure: events in, actions out, so that ten
// thousand agents and hundreds of histories are played in the tests. [Nodes] is the
// shell that runs them on a host, meeting.go says over which store, storeclient.go is the way
// to it.
//
// # Caveats
//
// Who may write to the store decides what is run where in the job, but not what is
// run: programs come from each agent's own command line. A process that is stopped
// (SIGSTOP) while its ranks are not cannot kill them; they fail because the other
// nodes stop theirs. Nodes that meet in a file add some hundred bytes a second each.
package rendezvous
