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
	"os"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// maxName bounds a group's name, which travels and is part of every error.
const maxName = 200

// home is what the groups of one rank have in common: how their members are
// reached.
type home interface {
	// open makes this rank's part of a group, whose members and numbers are
	// set, and returns what moves its data and the name of that. It may return
	// before the other members have come.
	open(ctx context.Context, g *Group, cfg native.Config) (backend collective.Backend, transport string, err error)
}

// NewGroup makes a group of some ranks of g. ranks are numbers in g; their
// order is the order of ranks in the new group. The members call NewGroup with
// the same ranks and options, and nobody else does; it returns when all of
// them have. Members that make several groups of the same ranks make them in
// the same order. ctx bounds the forming of the group only; without a deadline
// of its own, [DefaultInitTimeout] does. To try again after an error that not all
// members have had, give a new name by [WithName]: who had come to the first
// group would wait for a second one of that name, the others for the first.
//
// The new group is independent of g: both may have operations under way, and
// the failure of one does not end the other, but for the death or silence of
// a process, which ends all groups that it is in. The survivors then make a
// new group of themselves from the failed one, with NewGroup as here, also when
// it is rank 0 that is gone; only [Group.Store] is then of no use. Under `cohort run`
// this takes the flag --survivors (launch.Config.Survivors): without it the launcher
// ends the others a second after a rank has ended badly. Closing g closes the groups made from it.
//
// Another rank may be lost meanwhile, or have been lost at the same time, so
// survivors call NewGroup until it succeeds, as the example does. Errors of
// NewGroup number ranks in the new group, not in g (and in g where a member has
// left that): [RankError.JobRank] is the number in the job in any case. A rank
// that was given up itself, for it was stopped, finds its own number there.
//
// The options are [WithName], [WithTimeout], [WithSilence] and [WithDeterministic]; what is
// not given is as in g.
//
// In a job with PyTorch ranks it is new_group: every rank of the job calls it on the
// group of all ranks, those that are no member too, which get nil, and the group's
// ranks are in ascending order. With [WithLocalSynchronization] the members alone call it, and with
// [WithBackend]("native") Go ranks make a group among themselves.
func (g *Group) NewGroup(ctx context.Context, ranks []int, opts ...Option) (*Group, error) {
	o, err := g.groupOptions(opts)
	if err == nil && g.job == nil {
		err = g.checkMembers(ranks)
	}
	if err == nil && ctx.Err() != nil {
		err = ctxerr.Of(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("dist: new group of ranks %s of group %q on rank %d: %w", some(ranks), g.name, g.rank, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultInitTimeout,
			fmt.Errorf("not all members came within %v: %w", DefaultInitTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	if g.job != nil {
		sub, err := g.job.newGroup(ctx, g, ranks, o)
		if err != nil {
			err = within(fmt.Sprintf("dist: new group of ranks %s of group %q on rank %d: ", some(ranks), g.name, g.rank), "", err)
		}
		return sub, err
	}
	sub, key, err := g.member(ranks, o)
	if err != nil {
		return nil, fmt.Errorf("dist: new group of ranks %s of group %q on rank %d: %w", some(ranks), g.name, g.rank, err)
	}
	waits := sub.await(ctx)
	if err := waits.over(ctx, fault.Among(sub.members, sub.meet(ctx, key))); err != nil {
		sub.log.Close()
		g.forget(sub)
		return nil, within(fmt.Sprintf("dist: new group %q of ranks %s of group %q on rank %d: ", sub.name, some(ranks), g.name, g.rank), sub.name, err)
	}
	return sub, nil
}

// Split makes a group of all ranks of g that give the same color, ordered by
// key and among equal keys by their rank in g. All ranks of g call it, as a
// collective of g. A rank whose color is negative becomes member of no group
// and gets nil.
func (g *Group) Split(ctx context.Context, color, key int, opts ...Option) (*Group, error) {
	if g.job != nil {
		return nil, g.job.unsupported(g, "split", "makes its groups by NewGroup, which all ranks call alike")
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
func (g *Group) groupOptions(opts []Option) (options, error) {
	o := options{forGroup: true, timeout: g.timeout, silence: g.silence, algorithms: g.algorithms}
	err := o.apply(opts)
	switch {
	case err != nil || g.job != nil:
	case o.backend == glooBackend:
		err = errors.New("WithBackend: a group with PyTorch members is made in a job with them: give it to Init")
	case o.local:
		err = errors.New("WithLocalSynchronization is about jobs with PyTorch ranks")
	}
	return o, err
}

// checkMembers returns what is wrong with the ranks of a group to be made.
func (g *Group) checkMembers(ranks []int) error {
	if len(ranks) == 0 {
		return errors.New("no ranks: a group has one member at least")
	}
	at := make(map[int]int, len(ranks))
	for i, r := range ranks {
		if err := g.checkRank(fmt.Sprintf("ranks[%d]", i), r); err != nil {
			return err
		}
		if before, ok := at[r]; ok {
			return fmt.Errorf("ranks[%d] and ranks[%d] are both rank %d", before, i, r)
		}
		at[r] = i
	}
	if _, ok := at[g.rank]; !ok {
		return fmt.Errorf("rank %d is not among them: only members make a group", g.rank)
	}
	return nil
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
// and the key by which its members meet: the parent's key, the ranks and how
// many groups of this name and these ranks there have been, which every member
// knows without asking.
func (g *Group) member(ranks []int, o options) (*Group, string, error) {
	h := sha256.New()
	h.Write([]byte(g.key))
	for _, r := range ranks {
		_ = binary.Write(h, binary.LittleEndian, uint32(r))
	}
	id := hex.EncodeToString(h.Sum(nil)[:8])
	sub := &Group{size: len(ranks), node: g.node, home: g.home, host: g.host, parent: g, transport: "none", reached: g.reached,
		timeout: o.timeout, silence: o.silence, algorithms: o.algorithms}
	for i, r := range ranks {
		sub.members = append(sub.members, g.members[r])
		sub.world = append(sub.world, g.world[r])
		sub.nodes = append(sub.nodes, g.nodes[r])
		if r == g.rank {
			sub.rank = i
		}
	}
	sub.setLocal()
	sub.init()

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, "", ErrClosed
	}
	if o.name != "" {
		if _, inUse := g.root().names.LoadOrStore(o.name, sub); inUse || o.name == worldName {
			return nil, "", fmt.Errorf("this rank has a group of the name %q: close it before, or give another name by WithName", o.name)
		}
	}
	kind := id + " " + o.name
	count := g.made[kind]
	if g.made == nil {
		g.made, g.children = map[string]int{}, map[*Group]struct{}{}
	}
	sub.name = o.name
	if sub.name == "" {
		sub.name = fmt.Sprintf("%s/%s.%d", g.name, id[:8], count)
	}
	if len(sub.name) > maxName {
		return nil, "", fmt.Errorf("the name %q has %d bytes, want at most %d: give a shorter one by WithName", sub.name, len(sub.name), maxName)
	}
	sub.key, sub.meeting = fmt.Sprintf("%s %s.%d", sub.name, id, count), id
	g.made[kind]++
	g.children[sub] = struct{}{}
	sub.base, sub.store = g.base, store.Prefix(g.base, "group/"+sub.key+"/")
	for i, m := range sub.members {
		sub.members[i] = fault.MemberOf(sub.name, i, m)
	}
	sub.openLog()
	return sub, sub.key, nil
}

// meet brings the members of a new group together.
func (g *Group) meet(ctx context.Context, key string) error {
	if g.size == 1 {
		return nil
	}
	cfg := native.Config{Group: g.name, Key: key, Rank: g.rank, Members: g.members, World: g.world,
		Timeout: g.timeout, Silence: g.silence, Progress: g.howFar, Site: g.log.Site, Doing: g.doing, Where: g.log.Where, Options: g.algorithms,
		Agreed: agreed(g.algorithms, g.silence), Explain: explainer(g.name, g.rank)}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	g.mu.Lock()
	g.abort = abort
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return ErrClosed
	}
	g.log.Forms()
	members := g.expectMembers(abort)
	return members.stop(g.form(ctx, cfg))
}

// form opens a group's backend and waits for all members.
func (g *Group) form(ctx context.Context, cfg native.Config) error {
	backend, transport, err := g.home.open(ctx, g, cfg)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.backend, g.transport = backend, transport
	closed, unwatch := g.closed, g.unwatch
	g.mu.Unlock()
	if closed { // while it was formed: Close has seen no backend
		if unwatch != nil {
			unwatch()
		}
		_ = backend.Close()
		return ErrClosed
	}
	// All have come when all have passed this.
	if err := g.Barrier(ctx); err != nil {
		_ = g.Close()
		return err
	}
	return nil
}

// explainer returns what prints how a group's collectives are served, if the
// environment asks for it: on one rank, since all do the same.
func explainer(group string, rank int) *native.Explainer {
	if rank != 0 || !envvar.Debug.IsOn() {
		return nil
	}
	return native.NewExplainer(group, func(line string) { fmt.Fprintln(os.Stderr, line) })
}

// agreed is what members of a group must have in common, as a number.
func agreed(o collective.Options, silence time.Duration) uint64 {
	n := uint64(silence) << 1 // who beats seldom must not be listened to for often
	if o.Deterministic {
		n++
	}
	return n
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

// fail makes this rank's failure known to the members of the group and of all
// that were made from it, and then has it recorded.
func (g *Group) fail(err error) {
	g.spreadFailure(err)
	g.recordFailure(err)
}

func (g *Group) spreadFailure(err error) {
	for _, c := range g.offspring() {
		c.spreadFailure(err)
	}
	g.mu.Lock()
	backend := g.backend
	g.mu.Unlock()
	if backend != nil {
		backend.Fail(err)
	}
}
