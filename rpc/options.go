// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

const (
	// DefaultTimeout limits a call whose context has no deadline, as in PyTorch.
	DefaultTimeout = time.Minute
	// DefaultMaxMessage is how many bytes a message has at most that an agent takes.
	DefaultMaxMessage = 4 << 30
	// DefaultLease is for how long the references of a silent peer count.
	DefaultLease = 30 * time.Second
	minLease     = 100 * time.Millisecond
)

// Option changes what [Init] does. Functions whose names begin with With make options. A
// [Service] is an option, too.
type Option interface{ apply(o *options) error }

// option is an [Option] as a function.
type option func(*options) error

func (f option) apply(o *options) error { return f(o) }

type options struct {
	group *dist.Group
	store store.Store
	rank  int
	size  int

	peers      []PeerAddr
	network    *link.Network
	listen     string
	node       string
	token      transport.Token
	timeout    time.Duration
	maxMessage int
	lease      time.Duration // of references
	limit      int           // of running handlers
	serves     []*served
	errors     []known
	derive     []func(context.Context) context.Context
}

// WithOptions makes one option of several.
func WithOptions(opts ...Option) Option {
	return option(func(o *options) error { return o.applyAll(opts) })
}

func (o *options) applyAll(opts []Option) error {
	for i, opt := range opts {
		if opt == nil {
			return fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		}
		if err := opt.apply(o); err != nil {
			return err
		}
	}
	return nil
}

// PeerAddr is an agent of the list of [WithPeers].
type PeerAddr struct {
	Name string
	Addr string // host:port, or unix:/path or unix:@name on this host
}

// WithGroup makes the ranks of a group the agents of the job, with the same ranks. They
// meet in the group's store. Ranks of PyTorch cannot be agents. If the group has such
// ranks, give WithGroup a group of the Go ranks alone: Group.NewGroup with
// WithBackend("native").
func WithGroup(g *dist.Group) Option {
	return option(func(o *options) error {
		if g == nil {
			return errors.New("WithGroup was given no group")
		}
		o.group = g
		return o.in(store.Prefix(g.Store(), "rpc"), g.Rank(), g.Size())
	})
}

// WithStore makes size agents meet in a store. This agent has the given rank. If the store
// outlives a run, give each run a [store.Prefix] of its own. An agent that comes with
// another size than the first agent fails with [KindMembers].
func WithStore(s store.Store, rank, size int) Option {
	return option(func(o *options) error {
		if s == nil {
			return errors.New("WithStore was given no store")
		}
		return o.in(s, rank, size)
	})
}

func (o *options) in(s store.Store, rank, size int) error {
	if o.store != nil || o.peers != nil {
		return errors.New("WithGroup, WithStore and WithPeers each say where the agents meet: give one of them")
	}
	if size < 1 || size > maxAgents || rank < 0 || rank >= size {
		return fmt.Errorf("rank %d of %d agents: want 0 to one less than that, of 1 to %d agents", rank, size, maxAgents)
	}
	o.store, o.rank, o.size = s, rank, size
	return nil
}

// maxAgents bounds the agents of a job.
const maxAgents = 1 << 16

// WithPeers lists the agents of the job, without a store. All agents give the same list,
// with themselves in it, in the same order: the order gives the ranks. An agent listens at
// its address in the list, or at that of [WithListen].
//
// Init does not wait for the others. The first call to an agent whose list has other
// names, or another order, fails with [KindMembers]. An agent that is called asks back, at
// the caller's address in the list, whether the caller is there. If another process is
// there, the call fails with [KindNameTaken]; if nobody answers, with [KindUnreachable].
func WithPeers(peers []PeerAddr) Option {
	return option(func(o *options) error {
		if o.store != nil {
			return errors.New("WithGroup, WithStore and WithPeers each say where the agents meet: give one of them")
		}
		if len(peers) == 0 || len(peers) > maxAgents {
			return fmt.Errorf("WithPeers: %d agents, want 1 to %d", len(peers), maxAgents)
		}
		o.peers = append([]PeerAddr{}, peers...)
		return nil
	})
}

// WithListen sets the address at which the agent listens: host:port, where port 0 means
// any free port. Without this option the agent listens at a free port of the interface
// that reaches the others; see COHORT_INTERFACE.
func WithListen(addr string) Option {
	return option(func(o *options) error {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("WithListen: address %q: want host:port", addr)
		}
		o.listen = addr
		return nil
	})
}

// WithToken sets the job's token, 64 hexadecimal digits, in place of COHORT_TOKEN.
func WithToken(text string) Option {
	return option(func(o *options) (err error) {
		o.token, err = transport.ParseToken(text)
		return err
	})
}

// Network connects agents of one process by pipes, without sockets: for tests, also in
// virtual time.
type Network struct{ network link.Network }

// NewNetwork returns a network without agents.
func NewNetwork() *Network { return &Network{} }

// WithNetwork puts the agent on a network inside the process.
func WithNetwork(n *Network) Option {
	return option(func(o *options) error {
		if n == nil {
			return errors.New("WithNetwork was given no network")
		}
		o.network = &n.network
		return nil
	})
}

// WithTimeout sets the timeout of calls whose context has no deadline, in place of
// [DefaultTimeout]. 0 means that there is none.
func WithTimeout(d time.Duration) Option {
	return option(func(o *options) error {
		if d < 0 {
			return fmt.Errorf("a time limit of %v", d)
		}
		o.timeout = d
		return nil
	})
}

// WithMaxMessage sets the size in bytes of the largest message that the agent takes, in
// place of [DefaultMaxMessage].
func WithMaxMessage(bytes int) Option {
	return option(func(o *options) error {
		if bytes < 1<<10 || bytes > wire.MaxMessage {
			return fmt.Errorf("messages of at most %d bytes: want %d to %d", bytes, 1<<10, wire.MaxMessage)
		}
		o.maxMessage = bytes
		return nil
	})
}

// WithLease sets the lease of references, in place of [DefaultLease]: when a peer has been
// silent for so long, its references do not count any more. Peers send heartbeats ten
// times as often. All agents of a job should have the same lease.
func WithLease(d time.Duration) Option {
	return option(func(o *options) error {
		if d < minLease {
			return fmt.Errorf("a lease of %v: want at least %v", d, minLease)
		}
		o.lease = d
		return nil
	})
}

// WithConcurrency bounds how many handlers of the agent run at once, in place of
// [DefaultConcurrency]. Other calls wait for their turn. If handlers call other agents and
// wait, a bound that is too low is a deadlock, which ends with the calls' timeouts.
func WithConcurrency(n int) Option {
	return option(func(o *options) error {
		if n < 1 {
			return fmt.Errorf("a concurrency of %d", n)
		}
		o.limit = n
		return nil
	})
}

// WithError gives an error value a code that both sides know. If errors.Is finds err in a
// handler's error, it finds err in the caller's error too. Both agents need the option.
func WithError(code string, err error) Option {
	return option(func(o *options) error {
		if code == "" || err == nil {
			return errors.New("WithError wants a code and an error")
		}
		return o.know(sentinel(code, err))
	})
}

// WithErrorType gives an error type a code that both sides know. If errors.As finds an E
// in a handler's error, it finds an E with the same fields in the caller's error. Both
// agents need the option. E is a pointer to a struct whose exported fields can travel;
// tensors cannot.
func WithErrorType[E error](code string) Option {
	return option(func(o *options) error {
		k, err := errorType[E](code)
		if err != nil {
			return fmt.Errorf("WithErrorType%w", err)
		}
		return o.know(k)
	})
}

// KnowErrorType is [WithErrorType] for an agent that has begun. It does nothing if the
// agent knows the code already.
func KnowErrorType[E error](a *Agent, code string) error {
	k, err := errorType[E](code)
	if err != nil {
		return fmt.Errorf("rpc: KnowErrorType%w", err)
	}
	a.errors.add(k)
	return nil
}

// errorType makes a known error of a type.
func errorType[E error](code string) (known, error) {
	t := reflect.TypeFor[E]()
	if code == "" || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return known{}, fmt.Errorf("[%v]: want a code, and a pointer to a struct", t)
	}
	plan, err := codec.Plan(t)
	if err != nil {
		return known{}, fmt.Errorf("[%v]: %w", t, err)
	}
	return known{code: code,
		match: func(err error) (any, bool) {
			var e E
			ok := errors.As(err, &e)
			return e, ok
		},
		revive: func(r *wire.Received) error {
			var e E
			plan.Decode(&r.Dec, unsafe.Pointer(&e))
			if r.Dec.Err() != nil || reflect.ValueOf(e).IsNil() {
				return nil
			}
			return e
		}}, nil
}

func (o *options) know(k known) error {
	for _, have := range o.errors {
		if have.code == k.code {
			return fmt.Errorf("two errors have the code %q", k.code)
		}
	}
	o.errors = append(o.errors, k)
	return nil
}

// WithBaseContext lets handlers have values in their contexts. [Init] calls derive once.
// The contexts of all handlers are derived from the context that it returns, which is made
// from ctx.
func WithBaseContext(derive func(ctx context.Context) context.Context) Option {
	return option(func(o *options) error {
		if derive == nil {
			return errors.New("WithBaseContext was given no function")
		}
		o.derive = append(o.derive, derive)
		return nil
	})
}

// config is what the connections of an agent need to know.
func (o *options) config(ctx context.Context, name string) link.Config {
	c := link.Config{Context: ctx, Name: name, MaxMessage: o.maxMessage, Patience: o.timeout,
		Store: o.store, Rank: o.rank, Size: o.size, Network: o.network, Listen: o.listen, Node: o.node, Token: o.token}
	if g := o.group; g != nil {
		c.SharedToken = g.Transport() == "goroutines" || g.Transport() == "none"
	}
	for _, p := range o.peers {
		c.Peers = append(c.Peers, link.Address(p))
	}
	return c
}

// checkGroup returns an error if not all ranks of the group can be agents.
func (o *options) checkGroup(ctx context.Context) error {
	if o.group == nil {
		return nil
	}
	theirs, err := o.group.PyTorchRanks(ctx)
	if err != nil {
		return err
	}
	if len(theirs) > 0 {
		return fmt.Errorf("WithGroup: group %q has ranks of PyTorch, %v, which are no agents: make a group of the Go ranks by NewGroup(ctx, ranks, dist.WithBackend(\"native\"))", o.group.Name(), theirs)
	}
	return nil
}
