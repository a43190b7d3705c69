// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// errNoBeats is WithSilence for a group over gloo.
var errNoBeats = errors.New("WithSilence: nothing is heard of PyTorch's ranks between their calls, so none is given up for silence; groups that NewGroup makes with WithBackend(\"native\") take it")

// worldGroup is PyTorch's name of the group of all ranks.
const worldGroup = "0"

// forming is a group of the job that is being formed.
type forming struct {
	j        *job
	plan     backend.Plan
	name     string // PyTorch's
	end      context.CancelCauseFunc
	keys     store.Store // where the ranks meet at the end, numRanks of them
	numRanks int
	isZero   bool   // this rank is the group's rank 0
	entered  bool   // the group's name is in use on this rank
	unlock   func() // lets other groups be formed
}

// NewGroup implements [backend.Job]. It is PyTorch's new_group.
func (j *job) NewGroup(ctx context.Context, end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (backend.Forming, error) {
	switch w.Backend {
	case "native":
		return j.newNativeGroup(ctx, end, parent, w)
	case "", "gloo":
	default:
		return nil, fmt.Errorf("WithBackend: a group that is made in a PyTorch job has the backend \"gloo\" or \"native\" for the memory of the host, not %q", w.Backend)
	}
	if w.SilenceSet {
		return nil, errNoBeats
	}
	if !parent.IsWorld {
		return nil, errors.New("PyTorch makes groups from the group of all ranks: call it there, with ranks of the job")
	}
	ranks := slices.Clone(w.Ranks)
	slices.Sort(ranks) // as PyTorch does
	if err := checkRanks(ranks, len(parent.World)); err != nil {
		return nil, err
	}
	member := slices.Contains(ranks, parent.Rank)
	switch {
	case w.Local && j.release == Release1_13:
		return nil, errors.New("PyTorch 1.13 knows no groups that their members alone make")
	case w.Local && !member:
		return nil, nil
	}
	select { // else the ranks' numbers of groups would differ
	case j.making <- struct{}{}:
	case <-ctx.Done():
		return nil, ctxerr.Of(ctx)
	}
	f := &forming{j: j, end: end, plan: backend.Plan{Job: j}, keys: j.keys, numRanks: j.worldSize, unlock: func() { <-j.making }}
	var err error
	if f.name, err = j.nextName(ctx, parent, ranks, w.Local); err != nil {
		f.unlock()
		return nil, err
	}
	if j.release != Release1_13 {
		f.keys = j.groupKeys(worldGroup)
		if w.Local {
			f.keys, f.numRanks = j.groupKeys(f.name), len(ranks)
		}
	}
	if member {
		f.plan.Ranks, f.plan.Name, f.isZero = ranks, "PyTorch's "+f.name, ranks[0] == parent.Rank
	}
	return f, nil
}

// checkRanks returns what is wrong with ranks of so many that are to be a group's.
func checkRanks(sorted []int, size int) error {
	if len(sorted) == 0 {
		return errors.New("no ranks: a group has one member at least")
	}
	for i, r := range sorted {
		if r < 0 || r >= size {
			return fmt.Errorf("a member is rank %d of a group of %d", r, size)
		}
		if i > 0 && sorted[i-1] == r {
			return fmt.Errorf("rank %d is twice among them", r)
		}
	}
	return nil
}

// Plan implements [backend.Forming].
func (f *forming) Plan() backend.Plan { return f.plan }

// Open implements [backend.Forming].
func (f *forming) Open(ctx context.Context, s *backend.Spec) (*backend.Membership, error) {
	j := f.j
	j.enter(f.name)
	f.entered = true
	m := &backend.Membership{Transport: "none", Store: j.groupKeys(f.name), Close: func() error {
		j.leave(f.name)
		return nil
	}}
	r := &rules{j: j, spec: s}
	m.Rules = r
	if len(s.World) == 1 {
		return m, nil
	}
	var err error
	if s.Parent != nil {
		err = j.open(ctx, f.end, r, m, f.name, j.glooKeys(f.name))
	} else {
		err = j.openWorld(ctx, f.end, r, m)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// openWorld opens the group of all ranks. A rank that waits long says for whom.
func (j *job) openWorld(ctx context.Context, end context.CancelCauseFunc, r *rules, m *backend.Membership) error {
	m.Store = j.worldStore()
	stop := j.watchOthers(ctx, end)
	defer stop()
	published := &ownKey{Store: j.glooKeys(worldGroup)}
	missing := func(ctx context.Context) string {
		if err := j.twin(ctx, published); err != nil {
			end(err)
			return ""
		}
		return j.notPublished(ctx)
	}
	return j.waits(ctx, missing, func() error { return j.open(ctx, end, r, m, worldGroup, published) })
}

// worldStore is what PyTorch's ranks call the default store.
func (j *job) worldStore() store.Store {
	if j.release == Release1_13 {
		return j.keys
	}
	return j.groupKeys(worldGroup)
}

// enter notes that this rank is in a group, until leave.
func (j *job) enter(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.names.enter(name)
}

func (j *job) leave(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.names.own, name)
}

// Complete implements [backend.Forming]: the ranks meet once more, as PyTorch's do at the
// end of the making of a group.
func (f *forming) Complete(ctx context.Context) error {
	j := f.j
	if j.release == Release1_13 {
		j.mu.Lock()
		count := j.names.counted
		j.mu.Unlock()
		if f.isZero {
			// Ranks of PyTorch 1.13 wait for a number that only messages to people show, and
			// those whose calls are compared before they come to the barrier.
			if err := j.groupKeys(f.name).Set(ctx, "SEQ_NUM_STORE_KEY", binary.LittleEndian.AppendUint64(nil, 1)); err != nil {
				return err
			}
		}
		return storeBarrier(ctx, j.keys, strconv.Itoa(count), j.worldSize, false)
	}
	if envvar.InitBarrier.Text() != "1" {
		return nil
	}
	return storeBarrier(ctx, f.keys, f.name, f.numRanks, true)
}

// End implements [backend.Forming].
func (f *forming) End(ctx context.Context, err error) error {
	if err != nil && f.entered {
		f.j.leave(f.name)
	}
	if f.unlock != nil {
		f.unlock() // the next group is named by those that there are
	}
	if f.name == worldGroup {
		return f.j.formed(ctx, err)
	}
	return err
}

// newNativeGroup makes a group of Go ranks, which talk as in a job of their own.
// No rank of PyTorch notices.
func (j *job) newNativeGroup(ctx context.Context, end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (backend.Forming, error) {
	if err := meeting.CheckMembers(w.Ranks, parent); err != nil {
		return nil, err
	}
	if w.Local {
		return nil, errors.New("WithLocalSynchronization is about groups with PyTorch members")
	}
	theirs, err := parent.Rules.Foreign(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range w.Ranks {
		if slices.Contains(theirs, r) {
			return nil, fmt.Errorf("rank %d runs PyTorch: a native group is of Go ranks", r)
		}
	}
	return j.guests().NewGroup(ctx, end, parent, w)
}

// guests is what the Go ranks of the job have in common.
func (j *job) guests() *meeting.Guests {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.goes == nil {
		j.goes = meeting.NewGuests(j.settings, j.rank, j.worldSize, j.addr, j.agent, store.Prefix(j.keys, "cohort/go"))
	}
	return j.goes
}
