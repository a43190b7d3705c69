// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxNodes is how many nodes a job can have.
const MaxNodes = 1 << 16

// Settings are the settings that all nodes of a job must have in common, and the times of
// this node.
type Settings struct {
	Job         string // the name of the job; two jobs in one store have different names
	Min, Max    int    // the least and the largest number of nodes
	MaxRestarts int    // how many failures do not end the job
	Timing      Timing
}

// Phase is the state of a job.
type Phase string

// The values of Phase.
const (
	Gathering Phase = "gathering" // the next round forms
	Running   Phase = "running"   // a round runs
	Closed    Phase = "closed"    // the job has ended
)

// Cause says why a round ended.
type Cause string

// The values of Cause.
const (
	Joined      Cause = "joined"      // nodes came
	Lost        Cause = "lost"        // nodes fell silent
	Gone        Cause = "gone"        // nodes left
	Failure     Cause = "failed"      // ranks failed
	Interrupted Cause = "interrupted" // a node was cut off for a while
)

// Ending says how the last round ended.
type Ending struct {
	Version uint64 `json:"version"` // the first version of the state that says so
	Cause   Cause  `json:"cause"`
	Text    string `json:"text"`             // for people: which nodes, and why
	Lost    bool   `json:"lost,omitempty"`   // since then, nodes have been lost or have left
	Judged  bool   `json:"judged,omitempty"` // the decider has decided whether this counts as a failure
	Left    int    `json:"left,omitempty"`   // how many of the round's nodes are still there: the first Left members
}

// Refusal is a node that cannot take part.
type Refusal struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// State is what the nodes have agreed on. A State never changes: the decider makes another
// one, with the next version.
type State struct {
	Version     uint64 `json:"version"`
	Born        string `json:"born"` // ID of the node that wrote the first version
	Job         string `json:"job"`
	Min         int    `json:"min"`
	Max         int    `json:"max"`
	MaxRestarts int    `json:"max_restarts"`
	// Lost is Timing.Lost, which all nodes have in common.
	Lost     time.Duration `json:"lost"`
	Decider  string        `json:"decider"` // ID of the decider; empty: any node may become it
	Phase    Phase         `json:"phase"`
	Round    int           `json:"round"`    // number of the last round that began; the first is 1
	Restarts int           `json:"restarts"` // failures so far
	Arrived  int           `json:"arrived"`  // how many entries of the list of arrivals have been dealt with
	Members  []Node        `json:"members"`  // running: in the order of their ranks
	Waiting  []Node        `json:"waiting,omitempty"`
	Fresh    bool          `json:"fresh,omitempty"`  // gathering: nodes have come, and more may
	Ending   *Ending       `json:"ending,omitempty"` // of the last round, while gathering
	Refused  []Refusal     `json:"refused,omitempty"`
	Good     bool          `json:"good,omitempty"` // closed: all ranks ended with code 0
	Text     string        `json:"text,omitempty"` // closed: why; running: why the last round ended
}

// clone returns a copy that can be changed.
func (s *State) clone() *State {
	n := *s
	n.Members, n.Waiting, n.Refused = slices.Clone(s.Members), slices.Clone(s.Waiting), slices.Clone(s.Refused)
	if s.Ending != nil {
		e := *s.Ending
		n.Ending = &e
	}
	return &n
}

// NumRanks is the number of ranks of all members.
func (s *State) NumRanks() int {
	n := 0
	for i := range s.Members {
		n += s.Members[i].NumRanks
	}
	return n
}

// find returns the index of a node, or -1.
func find(nodes []Node, id string) int {
	return slices.IndexFunc(nodes, func(n Node) bool { return n.ID == id })
}

// has reports whether the state knows a node.
func (s *State) has(id string) bool { return find(s.Members, id) >= 0 || find(s.Waiting, id) >= 0 }

// storeNode returns the member that serves the store, nil if none of them does.
func (s *State) storeNode() *Node {
	for i := range s.Members {
		if s.Members[i].Hosts {
			return &s.Members[i]
		}
	}
	return nil
}

// Place says which ranks one node has in a round.
type Place struct {
	Round               int
	Restarts            int // failures before this round
	NodeRank, NumNodes  int
	FirstRank, NumRanks int    // first rank of this node; number of ranks of the job
	FirstRoleRank       int    // first rank of this node among the ranks of its role
	NumRoleRanks        int    // number of ranks of that role
	MasterAddr          string // at which rank 0 listens
	MasterPort          int
	Before              string // why the last round ended
	AgentStore          bool   // the agent of node 0 serves PyTorch's store
	Addrs               string // the addresses of all nodes, separated by commas
	Version             uint64 // the version of the state that says so
}

// place returns the place of the member at index i.
func (s *State) place(i int) Place {
	p := Place{
		Round: s.Round, Restarts: s.Restarts, NodeRank: i, NumNodes: len(s.Members), NumRanks: s.NumRanks(),
		MasterAddr: s.Members[0].Addr, MasterPort: s.Members[0].Port, AgentStore: s.Members[0].Store, Before: s.Text, Version: s.Version,
	}
	var addrs []string
	for j := range s.Members {
		m := &s.Members[j]
		addrs = append(addrs, m.Addr)
		same := m.Role == s.Members[i].Role
		if j < i {
			p.FirstRank += m.NumRanks
			if same {
				p.FirstRoleRank += m.NumRanks
			}
		}
		if same {
			p.NumRoleRanks += m.NumRanks
		}
	}
	p.Addrs = strings.Join(addrs, ",")
	return p
}

// mismatch returns an error if a node's settings differ from those of the job.
func (s *State) mismatch(set *Settings) error {
	if s.Job != set.Job {
		return fmt.Errorf("the job here is %q, this node's is %q: give --rdzv-id %s, or another endpoint", s.Job, set.Job, s.Job)
	}
	nodes := func(lo, hi int) string {
		if lo == hi {
			return strconv.Itoa(lo)
		}
		return fmt.Sprintf("%d:%d", lo, hi)
	}
	if s.Min != set.Min || s.Max != set.Max {
		return fmt.Errorf("job %q was begun with --nnodes %s, this node has --nnodes %s: give all nodes the same", s.Job, nodes(s.Min, s.Max), nodes(set.Min, set.Max))
	}
	if s.MaxRestarts != set.MaxRestarts {
		return fmt.Errorf("job %q was begun with --max-restarts %d, this node has %d: give all nodes the same", s.Job, s.MaxRestarts, set.MaxRestarts)
	}
	if lost := set.Timing.Lost(); s.Lost != lost {
		return fmt.Errorf("job %q was begun with nodes that may be silent for %v, on this node it is %v: give all nodes the same keep_alive_interval and keep_alive_max_attempt in --rdzv-conf", s.Job, s.Lost, lost)
	}
	return nil
}
