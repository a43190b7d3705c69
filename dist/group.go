// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/diagnosis"
	"github.com/cohort-ml/cohort/dist/internal/flight"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/event"
)

// Group is this rank's membership in a group of ranks.
type Group struct {
	membership
	traffic
	standing
	lifetime
}

// membership is who the group's ranks are, and what they have agreed on. It does not change
// when the group is open.
type membership struct {
	name       string
	key        string // by which the members have met
	byRanks    string // what members call the group by its ranks alone
	rank, size int
	localRank  int
	localSize  int
	node       string
	nodes      []string // by rank
	members    []Member // by rank
	world      []int    // the ranks' numbers in the job
	parent     *Group   // nil for the group of all ranks
	job        backend.Job
	host       *native.Host // nil but in a network inside the process
	keys       store.Store  // of the job: where the groups have their keys
	store      store.Store
	reached    string // how other processes reach this one over TCP
	timeout    time.Duration
	silence    time.Duration // 0: nobody is taken for silent
	algorithms collective.Options
	devices    map[string]string // the names of the backends, by the kind of device
}

// traffic is what moves data, and the calls that are under way.
type traffic struct {
	comm        backend.Communicator            // of the host's memory; nil for a group of one rank
	comms       map[string]backend.Communicator // of other kinds of devices
	rules       backend.Rules                   // what comm does not have; nil for nothing
	transport   string
	collectives lane
	pairs       map[pair]*lane
	objects     map[pair]chan struct{} // of one token: an object is on its way
	gate        receiveGate
	requests    sync.Pool // of *request
	staging     staging
	monitored   atomic.Uint64 // monitored barriers begun
}

// standing is what is known of how far this rank is.
type standing struct {
	log        *flight.Log         // nil records nothing
	box        *diagnosis.BlackBox // this rank's, of all its groups
	channel    *event.Channel      // the group's part of the rank's events; nil takes everything
	watchdog   *diagnosis.Watchdog // of the group of all ranks
	progress   progress
	failedOnce sync.Once
}

// lifetime is from when to when the group is there, and what holds it. mu guards it, and
// in traffic the communicators until the group is open, the pairs, the objects and the gate.
type lifetime struct {
	mu          sync.Mutex
	names       sync.Map            // on the group of all ranks: the names in use, to *Group
	children    map[*Group]struct{} // made from this one and not closed
	made        map[string]int      // how many groups of some ranks and name
	abort       context.CancelCauseFunc
	unwatch     func() // ends the news of deaths
	closed      bool
	closing     context.Context // ends when this rank closes the group
	endWaits    context.CancelCauseFunc
	running     int        // calls that have been issued and not ended
	noneRunning *sync.Cond // on mu
	closeOnce   sync.Once
	closeErr    error
	onClose     func(pending bool) error // pending: with operations under way
}

// pair is a direction of messages between this rank and a peer.
type pair struct {
	peer int
	send bool
}

// Rank returns this rank's number in the group, from 0.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in the group.
func (g *Group) Size() int { return g.size }

// LocalRank returns this rank's number among those of its node, from 0.
func (g *Group) LocalRank() int { return g.localRank }

// LocalSize returns the number of the group's ranks on this node.
func (g *Group) LocalSize() int { return g.localSize }

// NodeID returns what names the node that this process runs on, as [Group.Node]
// does: COHORT_NODE_ID, or what only processes have in common that the same running
// kernel serves in the same network namespace. It is empty where that is not known.
func NodeID() string { return meeting.NodeID("") }

// Node returns the id of the node that this rank runs on.
func (g *Group) Node() string { return g.node }

// Nodes returns the ids of the nodes that the ranks run on, in rank order. Ranks of equal id
// are on one node; an empty id says nothing.
func (g *Group) Nodes() []string { return slices.Clone(g.nodes) }

// Name returns the group's name as errors show it: "world" for the group of all
// ranks, for others that of [WithName] or one made of the name of the group
// that they were made from and a number that their members agree on.
func (g *Group) Name() string { return g.name }

// Ranks returns what the group's ranks are in the job: by rank in the group, the
// rank in the group of all ranks. The group of all has 0, 1, 2, …; to translate
// back, look where a rank stands in it ([slices.Index]).
func (g *Group) Ranks() []int { return slices.Clone(g.world) }

// Members returns who the ranks are, in rank order.
func (g *Group) Members() []Member { return append([]Member(nil), g.members...) }

// Transport returns how the ranks of the group exchange data: "none" (one
// rank), "goroutines", "shm", "unix", "tcp" or "tls", and for ranks of several nodes
// of which some have more than one rank "shm+tcp" or "unix+tcp"; "gloo" with PyTorch's, "mpi" with those of an MPI.
func (g *Group) Transport() string { return g.transport }

// Timeout returns the limit of a call whose context has no earlier end; see [WithTimeout].
func (g *Group) Timeout() time.Duration { return g.timeout }

// Interface returns the network interface and address at which the other ranks
// reach this one, and why it was chosen, for the start of a run:
// "eth0 10.0.0.3 (route to 10.0.0.1:29500)". It is empty where nothing of the
// job goes over TCP but the store.
func (g *Group) Interface() string { return g.reached }

// Store returns the key-value store that the ranks of the group share; each
// group has its own keys. Rank 0 of the job serves it; it ends with that rank's
// membership in the group of all ranks. With PyTorch's ranks it is what they
// call the group's store, the default store for the group of all.
func (g *Group) Store() store.Store { return g.store }

func (g *Group) String() string {
	return fmt.Sprintf("rank %d of %d in group %q", g.rank, g.size, g.name)
}

func (g *Group) init() {
	g.noneRunning = sync.NewCond(&g.mu)
	g.pairs = map[pair]*lane{}
	g.closing, g.endWaits = context.WithCancelCause(context.Background())
}

// PyTorchRanks returns which ranks of the group are PyTorch's, in order: those that
// take part in its collectives and in nothing else that Cohort has. It asks the job's
// store. Groups without PyTorch's wire have none; WithBackend("native") makes such
// ones among the Go ranks of a PyTorch job ([Group.NewGroup]).
func (g *Group) PyTorchRanks(ctx context.Context) ([]int, error) {
	if g.rules == nil {
		return nil, nil
	}
	return g.rules.Foreign(ctx)
}

// PyTorchVersion returns which PyTorch the other ranks of the job run, as far as is known:
// "1.13", "2.6", or "2" where it is one of 2.2 and later and no more was found out or said
// ([WithPyTorch]). It is empty for groups without PyTorch's wire.
func (g *Group) PyTorchVersion() string {
	if g.rules == nil {
		return ""
	}
	return g.rules.ForeignVersion()
}

// Close leaves the group, and first the groups made from it, and gives back
// all it holds. Operations that are still under way fail: here with [ErrClosed], on
// ranks that need this one with a [RankError] of cause [ErrLeft]. Where the last
// calls of the ranks did not fit and no call has said so yet, its error is the
// [MismatchError]. Calls after the first return what the first one did.
func (g *Group) Close() error {
	g.closeOnce.Do(func() {
		g.mu.Lock()
		g.closed = true
		pending := g.running > 0
		// What the group gets while it is being formed and this closes it, join gives back.
		comms, unwatch, abort, onClose := g.communicators(), g.unwatch, g.abort, g.onClose
		g.mu.Unlock()
		if abort != nil {
			abort(ErrClosed) // the forming, if it is still under way
		}
		for _, c := range g.offspring() {
			if err := c.Close(); g.closeErr == nil {
				g.closeErr = err
			}
		}
		if pending {
			for _, c := range comms {
				c.Fail(ErrClosed)
			}
		}
		g.endWaits(ErrClosed)
		g.watchdog.Close()
		g.mu.Lock()
		for g.running > 0 {
			g.noneRunning.Wait()
		}
		g.mu.Unlock()
		if unwatch != nil {
			unwatch()
		}
		for _, c := range slices.Backward(comms) { // that of the host's memory last: it knows who leaves
			if err := fault.Among(g.members, c.Close()); g.closeErr == nil {
				g.closeErr = err
			}
		}
		g.log.Close()
		if g.parent != nil {
			g.parent.forget(g)
		}
		if err := g.staging.close(); g.closeErr == nil {
			g.closeErr = err
		}
		if onClose != nil {
			if err := onClose(pending); g.closeErr == nil {
				g.closeErr = err
			}
		}
	})
	return g.closeErr
}
