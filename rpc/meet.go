// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// record is what an agent says of itself in the store, as JSON under the key
// "agent/" and its rank. docs/rpc-wire.md describes it.
type record struct {
	Name string `json:"name"`
	Rank int    `json:"rank"`
	ID   string `json:"id"` // of this run of the agent
	TCP  string `json:"tcp,omitempty"`
	Unix string `json:"unix,omitempty"`
	Shm  bool   `json:"shm,omitempty"` // memory may be shared over Unix
	Node string `json:"node,omitempty"`
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	Size int    `json:"size,omitempty"` // of the job
}

// addresses lists where the agent listens, for messages.
func (r *record) addresses() string {
	switch {
	case r.TCP != "" && r.Unix != "":
		return r.Unix + " or " + r.TCP
	case r.TCP+r.Unix == "":
		return "its pipe"
	}
	return r.TCP + r.Unix
}

// meeting is how an agent found the others, where that was in a store.
type meeting struct {
	store      store.Store
	rank, size int
}

func agentKeyOf(rank int) string   { return "agent/" + strconv.Itoa(rank) }
func nameKeyOf(name string) string { return "name/" + name }

// sizeKey has the record of the agent that was the first to come: its size is the
// job's.
const sizeKey = "size"

// tokenKey is under which the goroutine ranks of one process share a token.
const tokenKey = "token"

// open makes the agent reachable and finds the others.
func (a *Agent) open(ctx context.Context, o *options) error {
	if o.store != nil {
		a.meeting = &meeting{o.store, o.rank, o.size}
		a.me.Size = o.size
	}
	if o.peers != nil {
		return a.openByHand(ctx, o)
	}
	if a.meeting == nil {
		a.setPeers([]record{a.me})
		return nil
	}
	if o.group != nil {
		theirs, err := o.group.PyTorchRanks(ctx)
		if err != nil {
			return err
		}
		if len(theirs) > 0 {
			return fmt.Errorf("WithGroup: group %q has ranks of PyTorch, %v, which are no agents: make a group of the Go ranks by NewGroup(ctx, ranks, dist.WithBackend(\"native\"))", o.group.Name(), theirs)
		}
	}
	if err := a.listen(ctx, o); err != nil {
		return err
	}
	var all []record
	err := a.meeting.enter(ctx, &a.me)
	if err == nil {
		all, err = a.meeting.others(ctx)
	}
	if err != nil {
		a.meeting.withdraw(ctx, &a.me)
		return err
	}
	for i := range all {
		if all[i].Rank != i {
			return fmt.Errorf("the record of agent %d says that it is agent %d", i, all[i].Rank)
		}
	}
	a.setPeers(all)
	return nil
}

// openByHand makes the agent one of a list.
func (a *Agent) openByHand(ctx context.Context, o *options) error {
	all := make([]record, len(o.peers))
	seen := map[string]bool{}
	a.rank = -1
	for i, p := range o.peers {
		all[i] = record{Name: p.Name, Rank: i}
		if strings.HasPrefix(p.Addr, "unix:") {
			all[i].Unix, all[i].Shm = p.Addr, transport.SharedMemory // as it is here
		} else {
			all[i].TCP = p.Addr
		}
		if !agentName.MatchString(p.Name) {
			return fmt.Errorf("WithPeers: agent %d: the name %q: want 1 to %d letters, digits or any of _.:-", i, p.Name, maxName)
		}
		if seen[p.Name] {
			return &Error{Peer: p.Name, Rank: i, Kind: KindNameTaken, Msg: "the list of WithPeers has the name twice"}
		}
		seen[p.Name] = true
		if p.Name == a.name {
			a.rank, a.me.Rank = i, i
		}
	}
	if a.rank < 0 {
		return fmt.Errorf("WithPeers: the list must have this agent, %q, too; it has %s", a.name, namesOf(o.peers))
	}
	a.list = fingerprint(namesOf(o.peers))
	all[a.rank].ID = a.me.ID
	a.setPeers(all)
	if o.network != nil {
		return errors.New("agents on a Network meet by WithStore")
	}
	if o.listen == "" {
		o.listen = o.peers[a.rank].Addr
	}
	return a.listen(ctx, o)
}

// namesOf lists the names of agents.
func namesOf(peers []PeerAddr) string {
	names := make([]string, len(peers))
	for i := range peers {
		names[i] = peers[i].Name
	}
	return strings.Join(names, ", ")
}

// setPeers says who the agents are.
func (a *Agent) setPeers(all []record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range all {
		p := &Peer{agent: a, name: all[i].Name, rank: i, where: all[i], life: all[i].ID}
		a.peers = append(a.peers, p)
		a.byName[p.name] = p
	}
	a.self = a.peers[a.rank]
}

// SocketPrefix is how the names of the sockets begin at which agents on Linux listen for
// those of their host: what cohort rpc show --pid looks for.
const SocketPrefix = "unix:@cohort-rpc-"

// listen opens the agent's ports.
func (a *Agent) listen(ctx context.Context, o *options) (err error) {
	if a.network != nil {
		a.network.join(a)
		return nil
	}
	if a.kind, err = envvar.Transport.OneOf(envvar.Transports()...); err != nil {
		return err
	}
	if a.encrypt, err = transport.EncryptFromEnv(); err != nil {
		return err
	}
	if a.me.Node == "" {
		a.me.Node = dist.NodeID()
	}
	if err := a.findToken(ctx, o); err != nil {
		return err
	}
	byHand := o.peers != nil
	if a.kind == "auto" || a.kind == "shm" || a.kind == "unix" {
		addr := "unix:"
		if strings.HasPrefix(o.listen, "unix:") {
			addr = o.listen
		}
		if addr != "unix:" || !byHand { // who is given by hand has one address
			if addr == "unix:" && runtime.GOOS == "linux" {
				addr = SocketPrefix + newID() + newID()
			}
			port, err := a.listenAt(addr)
			if err != nil {
				return err
			}
			a.me.Unix, a.me.Shm = port.Addr(), transport.SharedMemory
		}
	}
	if strings.HasPrefix(o.listen, "unix:") || o.listen == "" && (a.kind == "shm" || a.kind == "unix") {
		return nil
	}
	addr := o.listen
	if addr == "" {
		addr = net.JoinHostPort(reachable(ctx), "0")
	}
	port, err := a.listenAt(addr)
	if err != nil {
		return err
	}
	a.me.TCP = port.Addr()
	return nil
}

func (a *Agent) listenAt(addr string) (*transport.Port, error) {
	port, err := transport.Listen(addr, a.token)
	if err != nil {
		return nil, err
	}
	port.OnRefusal(func(r transport.Refusals) { fmt.Fprintf(os.Stderr, "cohort: rpc agent %s %v\n", a.name, r) })
	if a.encrypt != transport.EncryptNone {
		port.RequireTLS(proto)
	}
	a.ports = append(a.ports, port)
	port.Handle(proto, a.accept)
	if transport.SharedMemory && strings.HasPrefix(addr, "unix:") {
		port.Handle(protoShared, a.acceptShared)
	}
	return port, nil
}

// reachable returns the address at which others reach this host: the one on the
// way to the master if there is one, else the loopback's.
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

// findToken finds the job's token. Ranks that are goroutines of one process share
// one that the first of them makes: their store is in memory.
func (a *Agent) findToken(ctx context.Context, o *options) error {
	if !a.token.IsZero() {
		return nil
	}
	if o.group != nil && (o.group.Transport() == "goroutines" || o.group.Transport() == "none") {
		text, _, err := o.store.CompareAndSet(ctx, tokenKey, nil, []byte(transport.NewToken().Text()))
		if err != nil {
			return err
		}
		a.token, err = transport.ParseToken(string(text))
		return err
	}
	var err error
	a.token, err = transport.TokenFromEnv()
	return err
}

// enter publishes an agent.
func (m *meeting) enter(ctx context.Context, me *record) error {
	value, err := json.Marshal(me)
	if err != nil {
		return err
	}
	for _, key := range []string{sizeKey, nameKeyOf(me.Name), agentKeyOf(me.Rank)} {
		current, fresh, err := m.store.CompareAndSet(ctx, key, nil, value)
		if err != nil {
			return err
		}
		if fresh {
			continue
		}
		var other record
		_ = json.Unmarshal(current, &other) // for the message only
		if key == sizeKey {
			if other.Size != m.size {
				return &Error{Peer: other.Name, Rank: other.Rank, Kind: KindMembers, Msg: fmt.Sprintf("its job has %d agents, this one's %d (process %d on host %s)", other.Size, m.size, other.PID, other.Host)}
			}
			continue
		}
		what := fmt.Sprintf("the name %q", me.Name)
		if key != nameKeyOf(me.Name) {
			what = fmt.Sprintf("rank %d", me.Rank)
		}
		return &Error{Peer: other.Name, Rank: other.Rank, Kind: KindNameTaken, Msg: fmt.Sprintf("%s is taken by process %d on host %s", what, other.PID, other.Host)}
	}
	return nil
}

// withdrawTime is how long an agent that has not met the others tries to take back what
// it has said.
const withdrawTime = 5 * time.Second

// withdraw takes back what enter has published, as far as that is this agent's: the
// next one, this process's second try perhaps, is not to find its place taken, nor the
// others an agent that there is not. ctx may have ended.
func (m *meeting) withdraw(ctx context.Context, me *record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	value, err := json.Marshal(me)
	for _, key := range []string{agentKeyOf(me.Rank), nameKeyOf(me.Name), sizeKey} {
		mine := false
		if err == nil {
			_, mine, err = m.store.CompareAndSet(ctx, key, value, value)
		}
		if err == nil && mine {
			_, err = m.store.Delete(ctx, key)
		}
	}
}

// leave takes an agent out of the store.
func (m *meeting) leave(ctx context.Context, me *record) error {
	_, err := m.store.Delete(ctx, nameKeyOf(me.Name))
	_, err2 := m.store.Delete(ctx, agentKeyOf(me.Rank))
	var err3 error
	if me.Rank == 0 {
		_, err3 = m.store.Delete(ctx, sizeKey)
	}
	return errors.Join(err, err2, err3)
}

// others waits until all agents have published themselves.
func (m *meeting) others(ctx context.Context) ([]record, error) {
	keys := make([]string, m.size)
	for i := range keys {
		keys[i] = agentKeyOf(i)
	}
	values, err := m.store.MultiGet(ctx, keys...)
	if err != nil {
		var se *store.Error
		if errors.As(err, &se) && ctx.Err() != nil {
			var missing []string
			for _, k := range se.Keys {
				missing = append(missing, k[strings.LastIndexByte(k, '/')+1:])
			}
			return nil, fmt.Errorf("the agents of rank %s have not come: %w", strings.Join(missing, ", "), ended(ctx))
		}
		return nil, err
	}
	all := make([]record, len(values))
	for i, v := range values {
		if err := json.Unmarshal(v, &all[i]); err != nil {
			return nil, fmt.Errorf("the record of agent %d: %w", i, err)
		}
	}
	return all, nil
}
