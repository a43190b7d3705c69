// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/hook"
	"github.com/cohort-ml/cohort/rpc/internal/link"
)

// Agent is a process's place in a job. It serves methods and makes calls. Any number of
// goroutines may use it, and a process may have several agents.
type Agent struct {
	name    string
	rank    int
	end     *link.Endpoint // its connections
	self    *Peer
	peers   []*Peer // by rank; they do not change once Init has returned
	byName  map[string]*Peer
	timeout time.Duration
	errors  knownErrors
	hook    hook.Hook
	detach  func()  // of the hook, or nil
	refs    *keeper // nil until the agent has met the others
	stats   stats

	ctx    context.Context // ends with the agent
	cancel context.CancelCauseFunc

	// Calls that the agent makes.
	calls       sync.Pool   // of *link.Call, for synchronous ones; its tests may have a time of their own
	outstanding counter     // calls and streams that have begun
	closing     atomic.Bool // new calls are refused

	// Calls that it answers.
	mu        sync.RWMutex
	methods   map[string]*served
	nobody    *served // counts calls of unknown methods
	gate      gate
	parked    parking
	handling  counter
	abandoned abandoned // calls that no caller waits for any more

	rounds rounds // of shutdown, at the agent of rank 0
	losses losses
}

// Init makes an agent, and lets it meet the other agents of its job. With [WithGroup] or
// [WithStore] it waits until all of them have come; with [WithPeers] it does not. Without
// any of these options the agent is alone, and can call itself; with [WithListen] or
// [WithNetwork] others can [Agent.Visit] it. A name has 1 to 127
// letters, digits or any of "_.:-". No two agents of a job have the same name.
//
// If ctx has no deadline, Init waits 5 minutes at most. Calls of other agents may be
// answered before Init has returned.
func Init(ctx context.Context, name string, opts ...Option) (*Agent, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, initTimeout, fmt.Errorf("not all agents came within %v: %w", initTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	o := options{size: 1, timeout: DefaultTimeout, lease: DefaultLease, maxMessage: DefaultMaxMessage, limit: DefaultConcurrency, errors: builtinErrors()}
	if err := o.applyAll(opts); err != nil {
		return nil, fmt.Errorf("rpc: init %q: %w", name, err)
	}
	if !link.ValidName(name) {
		return nil, fmt.Errorf("rpc: init %q: want a name of 1 to %d letters, digits or any of _.:-", name, maxName)
	}
	a := newAgent(name, &o)
	err := a.addMethods(append(a.builtins(), o.serves...))
	if err == nil {
		err = o.checkGroup(ctx)
	}
	if err == nil {
		err = a.end.Open(ctx)
	}
	if err != nil {
		a.shut(errClosed)
		return nil, fmt.Errorf("rpc: init %q: %w", name, ownError(err))
	}
	a.begin(&o)
	return a, nil
}

// initTimeout limits Init when its context has no deadline.
const initTimeout = 5 * time.Minute

func newAgent(name string, o *options) *Agent {
	a := &Agent{name: name, rank: -1, timeout: o.timeout, errors: knownErrors{list: o.errors}, methods: map[string]*served{}, byName: map[string]*Peer{}}
	base := context.WithValue(context.Background(), agentKey{}, a)
	for _, derive := range o.derive {
		base = derive(base)
	}
	a.ctx, a.cancel = context.WithCancelCause(base)
	a.hook = hook.FromContext(base)
	a.end = link.New(o.config(a.ctx, name), (*linkHandler)(a))
	a.gate.limit = o.limit
	a.calls.New = func() any { return &link.Call{Answered: make(chan struct{}, 1)} }
	a.stats.init()
	a.nobody = &served{methodInfo: methodInfo{name: "(unknown)"}, stats: a.stats.in("(unknown)", "")}
	a.rounds.init()
	return a
}

// begin learns who the agents are, and lets calls be answered.
func (a *Agent) begin(o *options) {
	for _, p := range a.end.All() {
		peer := &Peer{agent: a, name: p.Name, rank: p.Rank, link: p}
		a.peers = append(a.peers, peer)
		a.byName[p.Name] = peer
	}
	a.rank = a.end.Rank
	a.self = a.peers[a.rank]
	a.refs = newKeeper(a, o.lease)
	if h, ok := a.hook.(interface {
		Attach(a *Agent, life uint64) (detach func())
	}); ok {
		a.detach = h.Attach(a, a.end.Life())
	}
	a.end.Answer()
}

// addMethods adds to what the agent serves.
func (a *Agent) addMethods(list []*served) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range list {
		if a.methods[s.name] != nil {
			return fmt.Errorf("the method %q is served already", s.name)
		}
		s.stats = a.stats.in(s.name, s.text)
		a.methods[s.name] = s
	}
	return nil
}

// Offer adds services to the agent. It is an error if the agent serves one of the methods
// already, or has been closed.
func (a *Agent) Offer(services ...Service) error {
	var o options
	for _, s := range services {
		if err := s.apply(&o); err != nil {
			return fmt.Errorf("rpc: agent %q: %w", a.name, err)
		}
	}
	if a.ctx.Err() != nil {
		return fmt.Errorf("rpc: agent %q: offer: %w", a.name, &Error{Rank: -1, Kind: KindClosed, Msg: errClosed.Error(), err: errClosed})
	}
	if err := a.addMethods(o.serves); err != nil {
		return fmt.Errorf("rpc: agent %q: %w", a.name, err)
	}
	return nil
}

// method returns what serves a method, nil if nothing does.
func (a *Agent) method(name []byte) *served {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.methods[string(name)]
}

// methodNames are those of what the agent serves, but for this module's own.
func (a *Agent) methodNames() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.methods)), reserved)
}

// methodList names what the agent serves, for messages.
func (a *Agent) methodList() string {
	names := a.methodNames()
	const most = 20
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Name returns the agent's name.
func (a *Agent) Name() string { return a.name }

// Rank returns the agent's rank in the job.
func (a *Agent) Rank() int { return a.rank }

// Size returns the number of agents in the job.
func (a *Agent) Size() int { return len(a.peers) }

// Addr returns the TCP address at which the agent listens, empty if it does not. Clients
// that are no agents connect to it.
func (a *Agent) Addr() string { return a.end.Addr() }

// VisitAddr returns the address at which other agents find this one by [Agent.Visit]: that
// of TCP, or "unix:…" if COHORT_TRANSPORT leaves no TCP, or "pipe:…" on a [Network]. It is
// empty if the agent listens nowhere.
func (a *Agent) VisitAddr() string { return a.end.VisitAddr() }

// Context returns the context from which the contexts of handlers are derived. It ends
// when the agent is closed.
func (a *Agent) Context() context.Context { return a.ctx }

// Self returns the agent as its own peer. Calls to it work like calls to others, without a
// network.
func (a *Agent) Self() *Peer { return a.self }

// Peer returns the agent of a name. If there is none, calls to the peer that it returns
// fail with [KindUnknownPeer].
func (a *Agent) Peer(name string) *Peer {
	p := a.byName[name]
	if p == nil {
		p = &Peer{agent: a, name: name, rank: -1}
		p.err = errorf(KindUnknownPeer, "", p, "no agent of the job has this name; there are %s", a.end.Names())
	}
	return p
}

// PeerRank returns the agent of a rank. If there is none, calls to the peer that it
// returns fail with [KindUnknownPeer].
func (a *Agent) PeerRank(rank int) *Peer {
	if rank >= 0 && rank < len(a.peers) {
		return a.peers[rank]
	}
	p := &Peer{agent: a, name: fmt.Sprintf("(rank %d)", rank), rank: rank}
	p.err = errorf(KindUnknownPeer, "", p, "the job has %d agents", len(a.peers))
	return p
}

// Peers returns all agents of the job, this one included, by rank.
func (a *Agent) Peers() []*Peer { return slices.Clone(a.peers) }

func (a *Agent) String() string {
	return fmt.Sprintf("agent %s (rank %d of %d)", a.name, a.rank, a.Size())
}
