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

// Settings are what all nodes of a job have to agree on, and how this one keeps time.
type Settings struct {
	Job         string // its name; two jobs in one store have different ones
	Min, Max    int    // nodes
	MaxRestarts int    // failures that do not end the job
	Timing      Timing
}

// Phase is where a job stands.
type Phase string

// The values of Phase.
const (
	Gathering Phase = "gathering"
	Running   Phase = "running"
	Closed    Phase = "closed"
)

// Cause is why a round ended.
type Cause string

// The values of Cause.
const (
	Joined      Cause = "joined"      // nodes came
	Lost        Cause = "lost"        // nodes fell silent
	Gone        Cause = "gone"        // nodes left
	Failure     Cause = "failed"      // ranks failed
	Interrupted Cause = "interrupted" // a node was cut off for a while
)

// Ending is how the last round ended.
type Ending struct {
	Version uint64 `json:"version"` // of the state that says so first
	Cause   Cause  `json:"cause"`
	Text    string `json:"text"`             // for people: who, and why
	Lost    bool   `json:"lost,omitempty"`   // nodes have been lost, or have left, since
	Judged  bool   `json:"judged,omitempty"` // whether it counts as a failure is decided
	Left    int    `json:"left,omitempty"`   // how many of the round's nodes are still there: the first of the members
}

// Refusal is a node that cannot take part.
type Refusal struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

// State is what the nodes have agreed on. It is never changed: who decides makes
// another one, with the next version.
type State struct {
	Version     uint64 `json:"version"`
	Born        string `json:"born"` // the node that wrote the first version
	Job         string `json:"job"`
	Min         int    `json:"min"`
	Max         int    `json:"max"`
	MaxRestarts int    `json:"max_restarts"`
	// Lost is Timing.Lost of all nodes.
	Lost     time.Duration `json:"lost"`
	Decider  string        `json:"decider"` // empty: any node may
	Phase    Phase         `json:"phase"`
	Round    int           `json:"round"`    // the last one that began; the first is 1
	Restarts int           `json:"restarts"` // failures so far
	Arrived  int           `json:"arrived"`  // how much of the list of arrivals is dealt with
	Members  []Node        `json:"members"`  // running: in the order of their ranks
	Waiting  []Node        `json:"waiting,omitempty"`
	Fresh    bool          `json:"fresh,omitempty"`  // gathering: nodes have come, and more may
	Ending   *Ending       `json:"ending,omitempty"` // of the last round, while gathering
	Refused  []Refusal     `json:"refused,omitempty"`
	Good     bool          `json:"good,omitempty"` // closed: all ranks ended well
	Text     string        `json:"text,omitempty"` // closed: why; running: why the round before ended
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

// find returns the place of a node among nodes, or -1.
func find(nodes []Node, id string) int {
	return slices.IndexFunc(nodes, func(n Node) bool { return n.ID == id })
}

// has reports whether the state knows a node.
func (s *State) has(id string) bool { return find(s.Members, id) >= 0 || find(s.Waiting, id) >= 0 }

// host returns the node that serves the store, if one of the members does.
func (s *State) host() *Node {
	for i := range s.Members {
		if s.Members[i].Hosts {
			return &s.Members[i]
		}
	}
	return nil
}

// Place is where the ranks of one node are in a round.
type Place struct {
	Round               int
	Restarts            int // failures before this round
	NodeRank, NumNodes  int
	FirstRank, NumRanks int // of the job: NumRanks is the world's size
	FirstRoleRank       int // among the ranks of the node's role
	NumRoleRanks        int
	MasterAddr          string // where rank 0 listens
	MasterPort          int
	Before              string // why the round before ended
	AgentStore          bool   // whether the agent there serves PyTorch's store
	Addrs               string // of all nodes, with commas between them
	Version             uint64 // of the state that says so
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

// mismatch says how a node's settings differ from those that the job began with.
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
