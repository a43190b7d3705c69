// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"
)

// Node is one node of a job: its agent, and what it contributes.
type Node struct {
	ID       string `json:"id"`   // new each time the agent joins the job
	Host     string `json:"host"` // the host's name, for people
	PID      int    `json:"pid"`
	Addr     string `json:"addr"` // the address at which ranks of other nodes reach it
	Port     int    `json:"port"` // a free port there, for rank 0 of the next round
	NumRanks int    `json:"ranks"`
	Role     string `json:"role"`
	Rank     int    `json:"rank"`            // the node rank that it asks for, -1 for any
	Hosts    bool   `json:"hosts,omitempty"` // it serves the store in which the nodes meet: the job ends with this node
	Store    bool   `json:"store,omitempty"` // if it gets rank 0, its agent serves PyTorch's store
}

// Name is the name of a node in messages.
func (n *Node) Name() string { return fmt.Sprintf("%s (agent pid %d)", n.Host, n.PID) }

// Status says what the ranks of a node do.
type Status string

// The values of Status.
const (
	Ready   Status = "ready"   // no rank runs; the node can take part in the next round
	Busy    Status = "busy"    // the ranks of the card's round run, or are being stopped
	Done    Status = "done"    // the ranks of the card's round have ended with code 0
	Failed  Status = "failed"  // a rank of the card's round has failed; no rank runs
	Leaving Status = "leaving" // the node leaves as soon as its ranks have been stopped
	Left    Status = "left"    // the node has left
)

// Card is what a node says of itself.
type Card struct {
	Node        Node `json:"node"`
	Min         int  `json:"min"` // this and the next three are the node's settings
	Max         int  `json:"max"`
	MaxRestarts int  `json:"max_restarts"`
	// Lost is Timing.Lost of this node. If it were shorter than that of the others, the node
	// would give them up too early. If it were longer, its ranks would run for too long.
	Lost time.Duration `json:"lost"`

	Beat   uint64 `json:"beat"`           // counts the heartbeats: it grows with every write
	Seen   uint64 `json:"seen"`           // the version of the state that the node has read
	Round  int    `json:"round"`          // the last round in which it took part, or whose end it has seen
	Status Status `json:"status"`         // what the ranks do
	Text   string `json:"text,omitempty"` // why the ranks failed, or why the node leaves
	// Final says that the failed ranks of the card's round would fail again.
	Final bool `json:"final,omitempty"`
}
