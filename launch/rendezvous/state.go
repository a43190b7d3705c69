// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of what is read from the store.
const (
	maxRanks = 1 << 16 // of a node
	maxText  = 4 << 10 // bytes of a name or a message
	maxState = 32 << 20
	maxCard  = 32 << 10
	// idBytes is the length of a node's ID.
	idBytes = 16
	// maxRefused is how many refusals the state remembers.
	maxRefused = 16
)

// MaxNodes is how many nodes a job can have.
const MaxNodes = 1 << 16

// Timing is how long things may take. The zero value is no use; see [DefaultTiming].
type Timing struct {
	Join     time.Duration // how long a job may wait for the least number of nodes
	LastCall time.Duration // how long it waits for more of them when these are there
	Close    time.Duration // how long the end may wait for those who have not heard of it
	Beat     time.Duration // between two writes of a card
	Misses   int           // beats without which a node is lost
	Read     time.Duration // how long the store may be out of reach
	Call     time.Duration // how long it may take to answer
}

// DefaultTiming absorbs a change within about four seconds.
func DefaultTiming() Timing {
	return Timing{Join: 10 * time.Minute, LastCall: time.Second, Close: 5 * time.Second, Beat: 500 * time.Millisecond, Misses: 5, Read: time.Minute, Call: time.Second}
}

// FixedMisses is Misses for a job of one number of nodes: nobody can go on without
// one that is silent, so that it may be silent for longer.
const FixedMisses = 30

// Lost is how long a card stands still before its node is given up.
func (t Timing) Lost() time.Duration { return t.Beat * time.Duration(t.Misses) }

// Fence is how long a node that cannot write its card lets its ranks live.
func (t Timing) Fence() time.Duration { return t.Lost() * 7 / 10 }

// Settings are what all nodes of a job have to agree on, and how this one keeps time.
type Settings struct {
	Job         string // its name; two jobs in one store have different ones
	Min, Max    int    // nodes
	MaxRestarts int    // failures that do not end the job
	Timing      Timing
}

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

var errWire = errors.New("this is no state of a rendezvous")

func (n *Node) check() error {
	switch {
	case !isID(n.ID):
		return fmt.Errorf("%w: a node id of %d bytes", errWire, len(n.ID))
	case n.NumRanks < 1 || n.NumRanks > maxRanks:
		return fmt.Errorf("%w: a node of %d ranks", errWire, n.NumRanks)
	case n.Port < 0 || n.Port > 65535 || n.Rank < -1 || n.Rank >= MaxNodes:
		return fmt.Errorf("%w: port %d, node rank %d", errWire, n.Port, n.Rank)
	case len(n.Host) > maxText || len(n.Addr) > maxText || len(n.Role) > maxText:
		return fmt.Errorf("%w: a name of more than %d bytes", errWire, maxText)
	case strings.ContainsAny(n.Host+n.Addr+n.Role, "\x00\n\r\x1b"):
		return fmt.Errorf("%w: a name with control characters", errWire)
	case strings.ContainsAny(n.Addr, "/ "):
		return fmt.Errorf("%w: address %q", errWire, n.Addr)
	}
	return nil
}

func isID(id string) bool {
	if len(id) != idBytes {
		return false
	}
	for _, c := range []byte(id) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// encode writes a value for the store. Nothing in one fails to be written.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decode(b []byte, limit int, v any) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", errWire, len(b), limit)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w (of another version of cohort?): %w", errWire, err)
	}
	if d.More() {
		return fmt.Errorf("%w: something follows it", errWire)
	}
	return nil
}

// decodeState reads a state from the store.
func decodeState(b []byte) (*State, error) {
	s := &State{}
	if err := decode(b, maxState, s); err != nil {
		return nil, err
	}
	switch {
	case s.Version == 0 || s.Round < 0 || s.Restarts < 0 || s.MaxRestarts < 0 || s.Arrived < 0:
		return nil, fmt.Errorf("%w: version %d, round %d, restarts %d of %d, arrived %d", errWire, s.Version, s.Round, s.Restarts, s.MaxRestarts, s.Arrived)
	case s.Min < 1 || s.Max < s.Min || s.Max > MaxNodes || len(s.Members) > s.Max || len(s.Waiting) > MaxNodes || len(s.Refused) > maxRefused:
		return nil, fmt.Errorf("%w: %d members and %d waiting of %d to %d", errWire, len(s.Members), len(s.Waiting), s.Min, s.Max)
	case s.Phase != Gathering && s.Phase != Running && s.Phase != Closed:
		return nil, fmt.Errorf("%w: phase %.20q", errWire, s.Phase)
	case s.Phase == Running && len(s.Members) == 0:
		return nil, fmt.Errorf("%w: it runs without nodes", errWire)
	case s.Decider != "" && !isID(s.Decider) || !isID(s.Born) || len(s.Job) > maxText || len(s.Text) > maxText:
		return nil, fmt.Errorf("%w: a name that is none", errWire)
	case s.Ending != nil && (len(s.Ending.Text) > maxText || s.Ending.Left < 0 || s.Ending.Left > len(s.Members)):
		return nil, fmt.Errorf("%w: an ending of %d bytes, after which %d of %d nodes are left", errWire, len(s.Ending.Text), s.Ending.Left, len(s.Members))
	}
	seen := make(map[string]bool, len(s.Members)+len(s.Waiting))
	for _, nodes := range [][]Node{s.Members, s.Waiting} {
		for i := range nodes {
			if err := nodes[i].check(); err != nil {
				return nil, err
			}
			if seen[nodes[i].ID] {
				return nil, fmt.Errorf("%w: node %s is there twice", errWire, nodes[i].ID)
			}
			seen[nodes[i].ID] = true
		}
	}
	return s, nil
}

// decodeCard reads a card from the store.
func decodeCard(b []byte) (*Card, error) {
	c := &Card{}
	if err := decode(b, maxCard, c); err != nil {
		return nil, err
	}
	if err := c.Node.check(); err != nil {
		return nil, err
	}
	if c.Round < 0 || len(c.Text) > maxText {
		return nil, fmt.Errorf("%w: a card of round %d with %d bytes of text", errWire, c.Round, len(c.Text))
	}
	switch c.Status {
	case Ready, Busy, Done, Failed, Leaving, Left:
		return c, nil
	}
	return nil, fmt.Errorf("%w: status %.20q", errWire, c.Status)
}

// clip keeps a message within what the store takes.
func clip(text string) string {
	const most = maxText - 16
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
