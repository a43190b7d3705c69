// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// maxName bounds a group's name, which travels and is part of every error.
const maxName = 200

// NewGroup makes a group of some ranks of g. ranks are numbers in g. Their
// order is the order of ranks in the new group. The members call NewGroup with
// the same ranks and options, and no other rank does. NewGroup returns when all members
// have called it. Members that make several groups of the same ranks make them in
// the same order. ctx bounds only the forming of the group. If ctx has no deadline,
// [DefaultInitTimeout] bounds it.
//
// If some members got an error and others did not, try again with a new name by [WithName].
// With the same name, the members that had joined the first group would wait for a second
// one, and the others for the first.
//
// The new group is independent of g: both may have operations under way, and
// the failure of one does not end the other. Only the death or silence of
// a process ends all groups that it is in. The survivors may then make a
// new group of themselves from the failed one by NewGroup, even if
// rank 0 was lost; only [Group.Store] cannot be used then. Under `cohort run`
// this needs the flag --survivors (launch.Config.Survivors): without it the launcher
// ends the others a second after a rank has ended badly. Closing g closes the groups made from it.
//
// Another rank may be lost while the survivors call NewGroup, so
// they call it until it succeeds, as the example does. Errors of
// NewGroup give the ranks' numbers in the new group, or in g for a member that has
// left g. [RankError.JobRank] is the number in the job in any case. A rank
// that the others gave up while it was stopped finds its own number there.
//
// The options are [WithName], [WithTimeout], [WithSilence] and [WithDeterministic]. What is
// not given is as in g.
//
// In a job with PyTorch ranks NewGroup is new_group: every rank of the job calls it on the
// group of all ranks, and the ranks that are no members get nil. The group's
// ranks are in ascending order. With [WithLocalSynchronization] only the members call it. With
// [WithBackend]("native") Go ranks make a group among themselves.
func (g *Group) NewGroup(ctx context.Context, ranks []int, opts ...Option) (*Group, error) {
	fail := func(err error) error {
		return backend.Within(fmt.Sprintf("dist: new group of ranks %s of group %q on rank %d: ", some(ranks), g.name, g.rank), "", err)
	}
	o, err := g.groupOptions(opts)
	if err == nil && ctx.Err() != nil {
		err = ctxerr.Of(ctx)
	}
	if err != nil {
		return nil, fail(err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultInitTimeout,
			fmt.Errorf("not all members came within %v: %w", DefaultInitTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(g.closing, func() { end(ErrClosed) })()
	parent := g.asParent()
	forming, err := g.job.NewGroup(ctx, end, parent, &backend.Wish{Ranks: ranks, Backend: o.backends[hostKind], Local: o.local, SilenceSet: o.SilenceSet})
	if err != nil {
		return nil, fail(err)
	}
	if forming == nil {
		return nil, nil
	}
	plan := forming.Plan()
	if len(plan.Ranks) == 0 {
		if err := forming.End(ctx, forming.Complete(ctx)); err != nil {
			return nil, fail(err)
		}
		return nil, nil
	}
	sub, err := g.member(&plan, o)
	if err != nil {
		return nil, fail(forming.End(ctx, err))
	}
	if err := forming.End(ctx, sub.form(ctx, end, forming, parent)); err != nil {
		_ = sub.Close() // which may be under way, as a part of g's
		return nil, backend.Within(fmt.Sprintf("dist: new group %q of ranks %s of group %q on rank %d: ", sub.name, some(ranks), g.name, g.rank), sub.name, err)
	}
	return sub, nil
}

// Split makes a group of all ranks of g that give the same color, ordered by
// key and among equal keys by their rank in g. All ranks of g call it, as a
// collective of g. A rank whose color is negative becomes member of no group
// and gets nil.
func (g *Group) Split(ctx context.Context, color, key int, opts ...Option) (*Group, error) {
	if g.rules != nil {
		if err := g.rules.AdmitsSplit(); err != nil {
			return nil, err
		}
	}
	if _, err := g.groupOptions(opts); err != nil { // before the others count on this rank
		return nil, fmt.Errorf("dist: split of group %q on rank %d: %w", g.name, g.rank, err)
	}
	all, err := g.gatherNumbers(ctx, time.Now(), int64(max(color, -1)), int64(key))
	if err != nil {
		return nil, err
	}
	if color < 0 {
		return nil, nil
	}
	var ranks []int
	for r := range g.size {
		if all[2*r] == int64(color) {
			ranks = append(ranks, r)
		}
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(all[2*a+1], all[2*b+1]) })
	return g.NewGroup(ctx, ranks, opts...)
}

// groupOptions are those of a group to be made.
func (g *Group) groupOptions(opts []Option) (*options, error) {
	o := &options{forGroup: true, Settings: backend.Settings{Timeout: g.timeout, Silence: g.silence, Algorithms: g.algorithms}}
	return o, o.apply(opts)
}

// asParent describes the group to the backend that makes another one from it.
func (g *Group) asParent() *backend.Parent {
	return &backend.Parent{Name: g.name, Rank: g.rank, Members: g.members, World: g.world, IsWorld: g.parent == nil, Rules: g.rules,
		Comm: func() backend.Communicator {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.closed {
				return nil
			}
			return g.comm
		}}
}

// some is a list of ranks as errors show it.
func some(ranks []int) string {
	const most = 16
	if len(ranks) <= most {
		return fmt.Sprint(ranks)
	}
	return fmt.Sprintf("%v and %d more", ranks[:most], len(ranks)-most)
}

// member returns this rank's part of a group to be made, not yet reachable,
// and gives it the key by which its members meet: the parent's key, the ranks and how
// many groups of this name and these ranks there have been, which every member
// knows without asking.
func (g *Group) member(plan *backend.Plan, o *options) (*Group, error) {
	h := sha256.New()
	h.Write([]byte(g.key))
	for _, r := range plan.Ranks {
		_ = binary.Write(h, binary.LittleEndian, uint32(r))
	}
	id := hex.EncodeToString(h.Sum(nil)[:8])
	sub := &Group{
		membership: membership{size: len(plan.Ranks), node: g.node, job: plan.Job, host: g.host, parent: g, reached: g.reached,
			keys: g.keys, timeout: o.Timeout, silence: o.Silence, algorithms: o.Algorithms, devices: o.devicesOver(g.devices)},
		traffic: traffic{transport: "none"},
	}
	for i, r := range plan.Ranks {
		sub.members = append(sub.members, g.members[r])
		sub.world = append(sub.world, g.world[r])
		sub.nodes = append(sub.nodes, g.nodes[r])
		if r == g.rank {
			sub.rank = i
		}
	}
	sub.init()

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	name := cmp.Or(o.name, plan.Name)
	if len(name) > maxName {
		return nil, tooLong(name)
	}
	if name != "" {
		if _, inUse := g.root().names.LoadOrStore(name, sub); inUse || name == backend.World {
			return nil, fmt.Errorf("this rank has a group of the name %q: close it before, or give another name by WithName", name)
		}
	}
	kind := id + " " + name
	count := g.made[kind]
	if g.made == nil {
		g.made, g.children = map[string]int{}, map[*Group]struct{}{}
	}
	sub.name = name
	if sub.name == "" {
		sub.name = fmt.Sprintf("%s/%s.%d", g.name, id[:8], count)
	}
	if len(sub.name) > maxName {
		return nil, tooLong(sub.name)
	}
	sub.key, sub.byRanks = fmt.Sprintf("%s %s.%d", sub.name, id, count), id
	g.made[kind]++
	g.children[sub] = struct{}{}
	sub.store = store.Prefix(g.keys, "group/"+sub.key+"/")
	for i, m := range sub.members {
		sub.members[i] = fault.MemberOf(sub.name, i, m)
	}
	sub.settleMembers(plan.Where)
	sub.openLog()
	return sub, nil
}

func tooLong(name string) error {
	return fmt.Errorf("the name %q has %d bytes, want at most %d: give a shorter one by WithName", name, len(name), maxName)
}

// settleMembers takes what is known of where the members run, as far as it is known.
func (g *Group) settleMembers(where []backend.Where) {
	for i, at := range where {
		m := &g.members[i]
		m.Host = cmp.Or(at.Host, m.Host)
		m.PID = cmp.Or(at.PID, m.PID)
		g.nodes[i] = at.Node
	}
	g.node = g.nodes[g.rank]
	g.setLocal()
}

// spec describes the group to the backend that opens it.
func (g *Group) spec(parent *backend.Parent) *backend.Spec {
	return &backend.Spec{Name: g.name, Key: g.key, ByRanks: g.byRanks, Rank: g.rank, Members: g.members, World: g.world, Parent: parent,
		Keys: g.keys, Store: g.store, Timeout: g.timeout, Silence: g.silence, Algorithms: g.algorithms,
		Progress: g.howFar, Site: g.log.Site, Where: g.log.Where, Doing: g.doing}
}

// form opens the group and waits for all members. end ends ctx, with a reason.
func (g *Group) form(ctx context.Context, end context.CancelCauseFunc, forming backend.Forming, parent *backend.Parent) error {
	plan := forming.Plan()
	g.mu.Lock()
	g.abort = end
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if plan.Barrier {
		g.log.Forms()
	}
	spec := g.spec(parent)
	m, err := forming.Open(ctx, spec)
	if err != nil {
		return err
	}
	if err := g.join(m); err != nil {
		return err
	}
	if err = g.joinDevices(ctx, spec); err == nil && plan.Barrier {
		err = g.Barrier(ctx)
	}
	if err == nil {
		err = forming.Complete(ctx)
	}
	if err != nil {
		_ = g.Close()
	}
	return err
}

// join takes this rank's part of the group, or gives it back where the group has been closed
// while it was formed: Close has seen nothing of it.
func (g *Group) join(m *backend.Membership) error {
	if m.Where != nil {
		g.settleMembers(m.Where)
	}
	if m.Store != nil {
		g.store = m.Store
	}
	g.mu.Lock()
	closed := g.closed
	if !closed {
		g.comm, g.rules, g.transport = m.Comm, m.Rules, m.Transport
		g.keep(m)
	}
	g.mu.Unlock()
	if closed {
		giveBack(m)
		return ErrClosed
	}
	return nil
}

// keep has the end of the group end a part of it too. The group is locked.
func (g *Group) keep(m *backend.Membership) {
	if last := g.unwatch; m.Unwatch != nil {
		g.unwatch = func() {
			m.Unwatch()
			if last != nil {
				last()
			}
		}
	}
	if last := g.onClose; m.Close != nil {
		g.onClose = func(pending bool) error {
			err := m.Close()
			if last != nil {
				err = errors.Join(err, last(pending))
			}
			return err
		}
	}
}

// giveBack closes a part of a group that the group has not taken.
func giveBack(m *backend.Membership) {
	if m.Unwatch != nil {
		m.Unwatch()
	}
	if m.Comm != nil {
		_ = m.Comm.Close()
	}
	if m.Close != nil {
		_ = m.Close()
	}
}

// joinDevices opens the communicators for other memory than the host's, on all ranks in one
// order. A group of one rank has them too: nothing else reaches that memory.
func (g *Group) joinDevices(ctx context.Context, spec *backend.Spec) error {
	spec.Host = g.comm
	for _, kind := range slices.Sorted(maps.Keys(g.devices)) {
		if kind == hostKind {
			continue
		}
		name := g.devices[kind]
		m, err := findBackend(name).open(ctx, spec)
		if err != nil {
			return fmt.Errorf("backend %q for %q: %w", name, kind, err)
		}
		g.mu.Lock()
		closed := g.closed
		if !closed {
			if g.comms == nil {
				g.comms = map[string]backend.Communicator{}
			}
			g.comms[kind] = m.Comm
			g.keep(m)
		}
		g.mu.Unlock()
		if closed {
			giveBack(m)
			return ErrClosed
		}
	}
	return nil
}

// setLocal counts the members on this rank's node.
func (g *Group) setLocal() {
	g.localRank, g.localSize = 0, 0
	for r, node := range g.nodes {
		if r == g.rank || node != "" && node == g.node {
			g.localSize++
			if r < g.rank {
				g.localRank++
			}
		}
	}
}

// root returns the group of all ranks.
func (g *Group) root() *Group {
	for g.parent != nil {
		g = g.parent
	}
	return g
}

// forget lets a closed group go.
func (g *Group) forget(child *Group) {
	g.root().names.CompareAndDelete(child.name, child)
	g.mu.Lock()
	delete(g.children, child)
	g.mu.Unlock()
}

// offspring returns the groups made from this one that are not closed.
func (g *Group) offspring() []*Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*Group
	for c := range g.children {
		all = append(all, c)
	}
	return all
}
