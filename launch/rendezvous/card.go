// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"time"
)

// Node is one agent and what it brings.
type Node struct {
	ID       string `json:"id"`   // of this life of this agent
	Host     string `json:"host"` // its name, for people
	PID      int    `json:"pid"`
	Addr     string `json:"addr"` // where ranks of other nodes reach it
	Port     int    `json:"port"` // free there, for rank 0 of the next round
	NumRanks int    `json:"ranks"`
	Role     string `json:"role"`
	Rank     int    `json:"rank"`            // the node rank that it asks for, -1 for any
	Hosts    bool   `json:"hosts,omitempty"` // it serves the store in which nodes meet: without it there is no job
	Store    bool   `json:"store,omitempty"` // its agent serves PyTorch's store where it has rank 0
}

// Name is how messages call a node.
func (n *Node) Name() string { return fmt.Sprintf("%s (agent pid %d)", n.Host, n.PID) }

// Status is what the ranks of a node do.
type Status string

// The values of Status.
const (
	Ready   Status = "ready"   // none runs; the node can be in the next round
	Busy    Status = "busy"    // those of the card's round run, or are being stopped
	Done    Status = "done"    // those of the card's round have ended well
	Failed  Status = "failed"  // one of the card's round has failed; none runs
	Leaving Status = "leaving" // the node goes, once its ranks have been stopped
	Left    Status = "left"    // the node has gone
)

// Card is what a node says of itself.
type Card struct {
	Node        Node `json:"node"`
	Min         int  `json:"min"` // these four are the node's settings
	Max         int  `json:"max"`
	MaxRestarts int  `json:"max_restarts"`
	// Lost is its Timing.Lost: with less than the others' it would give them up too
	// early, with more it would let its ranks live for too long.
	Lost time.Duration `json:"lost"`

	Beat   uint64 `json:"beat"`           // goes up with every write
	Seen   uint64 `json:"seen"`           // version of the state that the node has read
	Round  int    `json:"round"`          // the last one that it took part in, or has seen end
	Status Status `json:"status"`         // what its ranks do
	Text   string `json:"text,omitempty"` // why they failed, or why it leaves
	// Final says that those that failed in the card's round would do so again.
	Final bool `json:"final,omitempty"`
}
