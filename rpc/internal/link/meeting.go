// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc/internal/wire"
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

	named bool // Unix was given by the user, not chosen from the ways there are
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
	store store.Store
	size  int
}

func agentKeyOf(rank int) string   { return "agent/" + strconv.Itoa(rank) }
func nameKeyOf(name string) string { return "name/" + name }

// sizeKey has the record of the agent that was the first to come: its size is the
// job's.
const sizeKey = "size"

// tokenKey is under which the goroutine ranks of one process share a token.
const tokenKey = "token"

// openInStore makes the agent reachable, and meets the others in the store.
func (e *Endpoint) openInStore(ctx context.Context) error {
	e.meeting = &meeting{e.Store, e.Size}
	e.me.Size = e.Size
	if err := e.listen(ctx); err != nil {
		return err
	}
	var all []record
	err := e.meeting.enter(ctx, &e.me)
	if err == nil {
		all, err = e.meeting.others(ctx)
	}
	if err != nil {
		e.meeting.withdraw(ctx, &e.me)
		return err
	}
	for i := range all {
		if all[i].Rank != i {
			return fmt.Errorf("the record of agent %d says that it is agent %d", i, all[i].Rank)
		}
	}
	e.setPeers(all)
	return nil
}

// Leave takes the agent out of the store, if it has met the others there.
func (e *Endpoint) Leave(ctx context.Context) error {
	if e.meeting == nil {
		return nil
	}
	return e.meeting.leave(ctx, &e.me)
}

// openByList makes the agent one of a list.
func (e *Endpoint) openByList(ctx context.Context) error {
	all := make([]record, len(e.Peers))
	seen := map[string]bool{}
	e.Rank = -1
	for i, p := range e.Peers {
		all[i] = record{Name: p.Name, Rank: i}
		if strings.HasPrefix(p.Addr, "unix:") {
			all[i].Unix, all[i].Shm = p.Addr, transport.SharedMemory // as it is here
		} else {
			all[i].TCP = p.Addr
		}
		if !ValidName(p.Name) {
			return fmt.Errorf("WithPeers: agent %d: the name %q: want 1 to %d letters, digits or any of _.:-", i, p.Name, MaxName)
		}
		if seen[p.Name] {
			return &wire.Error{Peer: p.Name, Rank: i, Kind: wire.KindNameTaken, Msg: "the list of WithPeers has the name twice"}
		}
		seen[p.Name] = true
		if p.Name == e.Name {
			e.Rank, e.me.Rank = i, i
		}
	}
	names := namesOf(e.Peers)
	if e.Rank < 0 {
		return fmt.Errorf("WithPeers: the list must have this agent, %q, too; it has %s", e.Name, names)
	}
	e.list = wire.Fingerprint(names)
	all[e.Rank].ID = e.me.ID
	e.setPeers(all)
	if e.Network != nil {
		return errors.New("agents on a Network meet by WithStore")
	}
	if e.Listen == "" {
		e.Listen = e.Peers[e.Rank].Addr
	}
	return e.listen(ctx)
}

// namesOf lists the names of agents.
func namesOf(peers []Address) string {
	names := make([]string, len(peers))
	for i := range peers {
		names[i] = peers[i].Name
	}
	return strings.Join(names, ", ")
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
				return &wire.Error{Peer: other.Name, Rank: other.Rank, Kind: wire.KindMembers, Msg: fmt.Sprintf("its job has %d agents, this one's %d (process %d on host %s)", other.Size, m.size, other.PID, other.Host)}
			}
			continue
		}
		what := fmt.Sprintf("the name %q", me.Name)
		if key != nameKeyOf(me.Name) {
			what = fmt.Sprintf("rank %d", me.Rank)
		}
		return &wire.Error{Peer: other.Name, Rank: other.Rank, Kind: wire.KindNameTaken, Msg: fmt.Sprintf("%s is taken by process %d on host %s", what, other.PID, other.Host)}
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
			return nil, fmt.Errorf("the agents of rank %s have not come: %w", strings.Join(missing, ", "), ctxerr.Of(ctx))
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
