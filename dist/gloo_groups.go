// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/transport"
)

// WithLocalSynchronization makes a group with PyTorch members as new_group does
// with use_local_synchronization=True: the members alone call it, and who is none
// hears nothing of it. It is an option of [Group.NewGroup].
func WithLocalSynchronization() Option {
	return func(o *options) error {
		if !o.forGroup {
			return errors.New("WithLocalSynchronization is an option of NewGroup")
		}
		o.local = true
		return nil
	}
}

// newGroup is [Group.NewGroup] where the job has PyTorch ranks.
func (j *glooJob) newGroup(ctx context.Context, g *Group, ranks []int, o options) (*Group, error) {
	if o.backend == nativeBackend {
		return j.newNativeGroup(ctx, g, ranks, o)
	}
	if o.silenceSaid {
		return nil, errNoBeats
	}
	if g.parent != nil {
		return nil, errors.New("PyTorch makes groups from the group of all ranks: call it there, with ranks of the job")
	}
	ranks = slices.Clone(ranks)
	slices.Sort(ranks) // as PyTorch does
	if err := g.checkRanks(ranks); err != nil {
		return nil, err
	}
	member := slices.Contains(ranks, g.rank)
	switch {
	case o.local && j.pytorch == pytorch1_13:
		return nil, errors.New("PyTorch 1.13 knows no groups that their members alone make")
	case o.local && !member:
		return nil, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.closing, func() { cancel(ErrClosed) })()
	select { // else the ranks' numbers of groups would differ
	case j.making <- struct{}{}:
		defer func() { <-j.making }()
	case <-ctx.Done():
		return nil, ctxerr.Of(ctx)
	}
	name, err := j.nextName(ctx, g, ranks, o.local)
	if err != nil {
		return nil, err
	}
	var sub *Group
	keys, numRanks := j.keys, j.worldSize
	if j.pytorch != pytorch1_13 {
		keys = j.groupKeys("0")
		if o.local {
			keys, numRanks = j.groupKeys(name), len(ranks)
		}
	}
	if member {
		if o.name == "" {
			o.name = "PyTorch's " + name
		}
		var err error
		if sub, _, err = g.member(ranks, o); err != nil {
			return nil, err
		}
		sub.job, sub.store = j, j.groupKeys(name)
		j.enter(sub, name)
		if sub.size > 1 {
			err = j.open(ctx, cancel, sub, name, j.glooKeys(name))
		}
		if err != nil {
			sub.log.Close()
			g.forget(sub)
			j.leave(name)
			return nil, within("", sub.name, err)
		}
	}
	if err := j.met(ctx, sub, name, keys, numRanks); err != nil {
		if sub != nil {
			_ = sub.Close()
		}
		return nil, err
	}
	return sub, nil
}

// enter notes that this rank is in a group, until that is closed.
func (j *glooJob) enter(g *Group, name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.names.enter(name)
	g.onClose = func(bool) error {
		j.leave(name)
		return nil
	}
}

func (j *glooJob) leave(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.names.own, name)
}

// checkRanks returns what is wrong with ranks that are to be a group's.
func (g *Group) checkRanks(sorted []int) error {
	if len(sorted) == 0 {
		return errors.New("no ranks: a group has one member at least")
	}
	for i, r := range sorted {
		if err := g.checkRank("a member", r); err != nil {
			return err
		}
		if i > 0 && sorted[i-1] == r {
			return fmt.Errorf("rank %d is twice among them", r)
		}
	}
	return nil
}

// goMembers is what the Go ranks of a PyTorch job have for groups of their own:
// the meeting in which they are the only ranks that ever come.
type goMembers struct {
	mu      sync.Mutex
	meeting *meeting
	book    []native.Address
	keys    store.Store
}

// goEntry is what a Go rank tells the others.
type goEntry struct {
	introduction
	TCP string `json:"tcp"`
}

// newNativeGroup makes a group of Go ranks, which talk as in a job of their own.
// No rank of PyTorch notices.
func (j *glooJob) newNativeGroup(ctx context.Context, g *Group, ranks []int, o options) (*Group, error) {
	if err := g.checkMembers(ranks); err != nil {
		return nil, err
	}
	if o.local {
		return nil, errors.New("WithLocalSynchronization is about groups with PyTorch members")
	}
	theirs, err := g.PyTorchRanks(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range ranks {
		if slices.Contains(theirs, r) {
			return nil, fmt.Errorf("rank %d runs PyTorch: a native group is of Go ranks", r)
		}
	}
	j.mu.Lock()
	if j.goes == nil {
		j.goes = &goMembers{keys: store.Prefix(j.keys, "cohort/go")}
	}
	goes := j.goes
	j.mu.Unlock()
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = g.world[r]
	}
	m, err := goes.meet(ctx, j, world)
	if err != nil {
		return nil, err
	}
	sub, key, err := g.member(ranks, o)
	if err != nil {
		return nil, err
	}
	sub.home, sub.silence = m, o.silence
	for i, r := range world {
		sub.members[i].Host, sub.members[i].PID = m.all[r].Host, m.all[r].PID
		sub.nodes[i] = m.all[r].Node
	}
	sub.node = m.me.Node
	sub.setLocal()
	waits := sub.await(ctx)
	if err := waits.over(ctx, fault.Among(sub.members, sub.meet(ctx, key))); err != nil {
		sub.log.Close()
		g.forget(sub)
		return nil, within("", sub.name, err)
	}
	return sub, nil
}

// meet learns how the Go ranks among ranks of the job are reached, and lets them
// know how this one is.
func (m *goMembers) meet(ctx context.Context, j *glooJob, world []int) (*meeting, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.meeting == nil {
		if err := m.open(ctx, j); err != nil {
			return nil, err
		}
	}
	for _, r := range world {
		if m.meeting.all[r].PID != 0 {
			continue
		}
		text, err := m.keys.Get(ctx, strconv.Itoa(r))
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("rank %d has not come: it is no Go rank, or makes no such group: %w", r, ctxerr.Of(ctx))
			}
			return nil, err
		}
		var e goEntry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("what rank %d says of itself: %w", r, err)
		}
		if err := goTogether(j.rank, &m.meeting.me, r, &e.introduction); err != nil {
			return nil, err
		}
		m.meeting.all[r], m.book[r] = e.introduction, native.Address{Unix: e.Unix, TCP: e.TCP}
	}
	m.meeting.fabric.SetBook(slices.Clone(m.book))
	return m.meeting, nil
}

// open opens the ports at which the other Go ranks reach this one.
func (m *goMembers) open(ctx context.Context, j *glooJob) (err error) {
	mt := &meeting{options: j.options, place: place{j.rank, j.worldSize, j.addr}, agent: j.agent, box: j.box}
	if mt.token, err = transport.TokenFromEnv(); err != nil {
		return err
	}
	mt.me = introduction{PID: os.Getpid(), WorldSize: j.worldSize, Node: nodeID(j.node), Agreed: agreed(j.algorithms, j.silence)}
	mt.me.Host, _ = os.Hostname() // for messages only
	if err := mt.readEnvironment(); err != nil {
		return err
	}
	mt.all = make([]introduction, j.worldSize)
	mt.fabric = native.NewFabric(mt.token, mt.encrypt)
	defer func() {
		if err != nil {
			_ = mt.fabric.Close()
		}
	}()
	e := goEntry{}
	if kind := mt.me.Transport; native.SharedMemory && (kind == "auto" || kind == "shm") || kind == "unix" {
		port, err := transport.Listen("unix:", mt.token)
		if err != nil {
			return err
		}
		mt.guard(port)
		mt.fabric.Listen(port, true)
		mt.me.Unix = port.Addr()
	}
	if e.TCP, err = mt.listen(ctx); err != nil {
		return err
	}
	e.introduction = mt.me
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := m.keys.Set(ctx, strconv.Itoa(j.rank), text); err != nil {
		return err
	}
	m.meeting, m.book = mt, make([]native.Address, j.worldSize)
	mt.all[j.rank], m.book[j.rank] = mt.me, native.Address{Unix: e.Unix, TCP: e.TCP}
	return nil
}

func (m *goMembers) close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.meeting == nil {
		return nil
	}
	return m.meeting.fabric.Close()
}
