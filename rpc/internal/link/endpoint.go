// SPDX-License-Identifier: Apache-2.0

package link

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// ErrClosed is the cause of what ends because the agent does.
var ErrClosed = errors.New("the agent has been closed")

// MaxName bounds the names of agents.
const MaxName = 127

var agentName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,127}$`)

// ValidName says whether an agent may have a name.
func ValidName(name string) bool { return agentName.MatchString(name) }

// Config says who an agent is and how it meets the others: in Store, or by the list Peers.
// Without both it is alone.
type Config struct {
	Context    context.Context // ends with the agent
	Name       string
	MaxMessage int           // of the agent; each side tells the other its own
	Patience   time.Duration // how long answers wait for room before the connection ends; 0: for ever

	Store      store.Store
	Rank, Size int // with Peers, Open finds the rank
	// SharedToken says that the ranks are goroutines of one process: the first of them
	// makes the job's token and puts it into the store.
	SharedToken bool
	Peers       []Address

	Network *Network // nil: the machine's
	Listen  string   // the address for TCP, or "unix:…"; empty: a free one
	Node    string   // tells machines apart; empty: this one's
	Token   transport.Token
}

// Address is an agent of a list.
type Address struct{ Name, Addr string }

// Handler is the agent that an [Endpoint] belongs to.
type Handler interface {
	// Serve returns what answers a connection that a peer has made.
	Serve(c *ServerConn) Server
	// Lost says that a connection on which this agent calls a peer has ended.
	Lost(p *Peer, life uint64, err error)
}

// Endpoint is an agent's end of all of its connections: its ports, the other agents, and
// the connections with them.
type Endpoint struct {
	Config
	// Calling counts the synchronous calls of the agent that are under way. The caller of
	// the only one reads its own answer.
	Calling atomic.Int64

	handler   Handler
	me        record
	self      *Peer
	kind      string // of transport, as COHORT_TRANSPORT has it
	encrypt   transport.Encrypt
	meeting   *meeting // nil without a store
	list      uint64   // fingerprint of the list of peers, 0 without one
	ports     []*transport.Port
	running   sync.WaitGroup
	answering chan struct{} // closed by Answer
	visiting  sync.Mutex    // of prepareVisits

	mu      sync.RWMutex
	peers   []*Peer // by rank
	byName  map[string]*Peer
	clients map[*ClientConn]struct{}
	servers map[*ServerConn]struct{}
	opening map[*transport.Conn]struct{} // in the handshake
	notes   map[string]func(from *ServerConn, body []byte)
	closed  bool
}

// New returns an endpoint that is not open yet.
func New(c Config, h Handler) *Endpoint {
	e := &Endpoint{Config: c, handler: h, answering: make(chan struct{}), byName: map[string]*Peer{},
		clients: map[*ClientConn]struct{}{}, servers: map[*ServerConn]struct{}{}, opening: map[*transport.Conn]struct{}{},
		notes: map[string]func(*ServerConn, []byte){}}
	e.me = record{Name: c.Name, Rank: c.Rank, ID: NewID(), Node: c.Node, PID: os.Getpid()}
	e.me.Host, _ = os.Hostname() // for messages only
	return e
}

// NewID returns a random text, such as what tells an agent from an earlier one at its
// address.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Open makes the agent reachable and finds the others. Connections that peers make wait
// until [Endpoint.Answer].
func (e *Endpoint) Open(ctx context.Context) error {
	switch {
	case e.Store != nil:
		return e.openInStore(ctx)
	case e.Peers != nil:
		return e.openByList(ctx)
	}
	if e.Listen != "" || e.Network != nil { // for visitors
		if err := e.listen(ctx); err != nil {
			return err
		}
	}
	e.setPeers([]record{e.me})
	return nil
}

// Answer lets the connections that peers make be answered.
func (e *Endpoint) Answer() { close(e.answering) }

// setPeers says who the agents are.
func (e *Endpoint) setPeers(all []record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range all {
		p := &Peer{Name: all[i].Name, Rank: i, end: e, where: all[i], life: all[i].ID}
		e.peers = append(e.peers, p)
		e.byName[p.Name] = p
	}
	e.self = e.peers[e.Rank]
}

// All returns the agents of the job, this one included, by rank.
func (e *Endpoint) All() []*Peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.peers
}

// Life returns the number that tells this process from others of its name.
func (e *Endpoint) Life() uint64 { return wire.Fingerprint(e.me.ID) }

// Addr returns the address at which the agent listens for TCP, empty if it does not.
func (e *Endpoint) Addr() string { return e.me.TCP }

// VisitAddr returns the address at which others find the agent by [Endpoint.Visit], empty
// if it listens nowhere.
func (e *Endpoint) VisitAddr() string {
	if e.Network != nil {
		return pipePrefix + e.Name
	}
	return cmp.Or(e.me.TCP, e.me.Unix)
}

// Names lists the names of the agents, for messages.
func (e *Endpoint) Names() string {
	var names []string
	for _, p := range e.All() {
		names = append(names, p.Name)
		if len(names) == 20 {
			names = append(names, "…")
			break
		}
	}
	return strings.Join(names, ", ")
}

// Go runs f in a goroutine that Close waits for. It returns false if the endpoint has been
// closed.
func (e *Endpoint) Go(f func()) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.closed {
		e.running.Go(f)
	}
	return !e.closed
}

// Clients returns the connections on which this agent calls.
func (e *Endpoint) Clients() []*ClientConn {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := make([]*ClientConn, 0, len(e.clients))
	for c := range e.clients {
		all = append(all, c)
	}
	return all
}

// Servers returns what answers the connections on which others call.
func (e *Endpoint) Servers() []Server {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := make([]Server, 0, len(e.servers))
	for s := range e.servers {
		all = append(all, s.server)
	}
	return all
}

// Stop takes no more connections and ends those that are in the handshake. The others go
// on until [Endpoint.Close].
func (e *Endpoint) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for c := range e.opening {
		c.Close()
	}
}

// Close ends all connections for a reason and waits for the endpoint's goroutines.
func (e *Endpoint) Close(why error) error {
	var errs []error
	for _, p := range e.ports {
		errs = append(errs, p.Close())
	}
	for _, c := range e.Clients() {
		c.lose(why)
	}
	e.mu.RLock()
	servers := make([]*ServerConn, 0, len(e.servers))
	for s := range e.servers {
		servers = append(servers, s)
	}
	e.mu.RUnlock()
	for _, s := range servers {
		s.Lose(why)
	}
	if e.Network != nil {
		e.Network.leave(e)
	}
	e.running.Wait()
	return errors.Join(errs...)
}

// SocketPrefix begins the names of the sockets at which agents on Linux listen for those
// of their host.
const SocketPrefix = "unix:@cohort-rpc-"

// The protocols of package transport.
const (
	proto       = "rpc"
	protoShared = "rpcshm" // the same, through memory that is handed over first
)

// listen opens the agent's ports.
func (e *Endpoint) listen(ctx context.Context) (err error) {
	if e.Network != nil {
		e.Network.join(e)
		return nil
	}
	if e.kind, err = envvar.Transport.OneOf(envvar.Transports()...); err != nil {
		return err
	}
	if e.encrypt, err = transport.EncryptFromEnv(); err != nil {
		return err
	}
	if e.me.Node == "" {
		e.me.Node = dist.NodeID()
	}
	if err := e.findToken(ctx); err != nil {
		return err
	}
	if e.kind == "auto" || e.kind == "shm" || e.kind == "unix" {
		addr := "unix:"
		if strings.HasPrefix(e.Listen, "unix:") {
			addr = e.Listen
		}
		if addr != "unix:" || e.Peers == nil { // an agent of a list has one address
			if addr == "unix:" && runtime.GOOS == "linux" {
				addr = SocketPrefix + NewID() + NewID()
			}
			port, err := e.listenAt(addr)
			if err != nil {
				return err
			}
			e.me.Unix, e.me.Shm = port.Addr(), transport.SharedMemory
		}
	}
	if strings.HasPrefix(e.Listen, "unix:") || e.Listen == "" && (e.kind == "shm" || e.kind == "unix") {
		return nil
	}
	addr := e.Listen
	if addr == "" {
		addr = net.JoinHostPort(reachable(ctx), "0")
	}
	port, err := e.listenAt(addr)
	if err != nil {
		return err
	}
	e.me.TCP = port.Addr()
	return nil
}

func (e *Endpoint) listenAt(addr string) (*transport.Port, error) {
	port, err := transport.Listen(addr, e.Token)
	if err != nil {
		return nil, err
	}
	port.OnRefusal(func(r transport.Refusals) { fmt.Fprintf(os.Stderr, "cohort: rpc agent %s %v\n", e.Name, r) })
	if e.encrypt != transport.EncryptNone {
		port.RequireTLS(proto)
	}
	e.ports = append(e.ports, port)
	port.Handle(proto, e.accept)
	if transport.SharedMemory && strings.HasPrefix(addr, "unix:") {
		port.Handle(protoShared, e.acceptShared)
	}
	return port, nil
}

// reachable returns the address at which others reach this host: the one on the way to the
// master if there is one, else the loopback's.
func reachable(ctx context.Context) string {
	master := "192.0.2.1:9" // nobody's (RFC 5737): the route to most of the world
	if host, ok := envvar.MasterAddr.Lookup(); ok {
		if port, ok := envvar.MasterPort.Lookup(); ok {
			master = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
	}
	if c, err := transport.ChooseInterface(ctx, master); err == nil {
		return c.Host
	}
	return "127.0.0.1"
}

// findToken finds the job's token.
func (e *Endpoint) findToken(ctx context.Context) error {
	if !e.Token.IsZero() {
		return nil
	}
	if e.SharedToken {
		text, _, err := e.Store.CompareAndSet(ctx, tokenKey, nil, []byte(transport.NewToken().Text()))
		if err != nil {
			return err
		}
		e.Token, err = transport.ParseToken(string(text))
		return err
	}
	var err error
	e.Token, err = transport.TokenFromEnv()
	return err
}
