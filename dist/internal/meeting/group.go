// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// world is the forming of the group of all ranks, which have met.
type world struct{ m *meeting }

// Plan implements [backend.Forming].
func (w *world) Plan() backend.Plan { return backend.Plan{Job: w.m, Barrier: true} }

// Open implements [backend.Forming].
func (w *world) Open(ctx context.Context, s *backend.Spec) (*backend.Membership, error) {
	return w.m.open(ctx, s)
}

// Complete implements [backend.Forming].
func (w *world) Complete(context.Context) error { return nil }

// End implements [backend.Forming].
func (w *world) End(ctx context.Context, err error) error { return w.m.formed(ctx, err) }

// subgroup is the forming of a group of some ranks: its members alone take part.
type subgroup struct {
	plan backend.Plan
	end  context.CancelCauseFunc
	open func(ctx context.Context, s *backend.Spec) (*backend.Membership, error)

	spec    *backend.Spec
	waits   *awaited
	members *absence
}

// NewGroup implements [backend.Job].
func (m *meeting) NewGroup(_ context.Context, end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (backend.Forming, error) {
	if by := m.carried; by != nil {
		if w.Backend != "" && w.Backend != by.Backend {
			return nil, fmt.Errorf("WithBackend: a group that is made in this job has the backend %q for the memory of the host, not %q", by.Backend, w.Backend)
		}
		own := *w
		own.Backend = ""
		w = &own
	}
	return forming(newSubgroup(m, m.open, end, parent, w))
}

// forming makes of a group that is not formed none at all.
func forming(g *subgroup, err error) (backend.Forming, error) {
	if err != nil {
		return nil, err
	}
	return g, nil
}

// newSubgroup begins to form a group of some ranks of a job that opens communicators by open.
func newSubgroup(j backend.Job, open func(context.Context, *backend.Spec) (*backend.Membership, error), end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (*subgroup, error) {
	switch {
	case w.Backend == "gloo":
		return nil, errors.New("WithBackend: a group with PyTorch members is made in a job with them: give it to Init")
	case w.Backend != "" && w.Backend != "native":
		return nil, fmt.Errorf("WithBackend: a group that is made in this job has the backend \"native\" for the memory of the host, not %q", w.Backend)
	case w.Local:
		return nil, errors.New("WithLocalSynchronization is about jobs with PyTorch ranks")
	}
	if err := CheckMembers(w.Ranks, parent); err != nil {
		return nil, err
	}
	return &subgroup{plan: backend.Plan{Job: j, Ranks: w.Ranks, Barrier: len(w.Ranks) > 1}, end: end, open: open}, nil
}

// CheckMembers returns what is wrong with the ranks of a group to be made.
func CheckMembers(ranks []int, parent *backend.Parent) error {
	if len(ranks) == 0 {
		return errors.New("no ranks: a group has one member at least")
	}
	at := make(map[int]int, len(ranks))
	for i, r := range ranks {
		if r < 0 || r >= len(parent.World) {
			return fmt.Errorf("ranks[%d] is rank %d of a group of %d", i, r, len(parent.World))
		}
		if before, ok := at[r]; ok {
			return fmt.Errorf("ranks[%d] and ranks[%d] are both rank %d", before, i, r)
		}
		at[r] = i
	}
	if _, ok := at[parent.Rank]; !ok {
		return fmt.Errorf("rank %d is not among them: only members make a group", parent.Rank)
	}
	return nil
}

// Plan implements [backend.Forming].
func (g *subgroup) Plan() backend.Plan { return g.plan }

// Open implements [backend.Forming].
func (g *subgroup) Open(ctx context.Context, s *backend.Spec) (*backend.Membership, error) {
	if len(s.World) == 1 {
		return &backend.Membership{Transport: "none"}, nil
	}
	g.spec = s
	g.waits = await(ctx, s)
	g.members = expectMembers(s, g.end)
	m, err := g.open(ctx, s)
	if err != nil {
		return nil, err
	}
	m.Close = func() error {
		g.waits.settling.Wait()
		return nil
	}
	return m, nil
}

// Complete implements [backend.Forming].
func (g *subgroup) Complete(context.Context) error { return nil }

// End implements [backend.Forming].
func (g *subgroup) End(ctx context.Context, err error) error {
	if g.spec == nil {
		return err
	}
	return g.waits.over(ctx, fault.Among(g.spec.Members, g.members.stop(err)))
}

// config is what a group's communicator needs to know.
func config(s *backend.Spec) native.Config {
	return native.Config{Group: s.Name, Key: s.Key, Rank: s.Rank, Members: s.Members, World: s.World,
		Timeout: s.Timeout, Silence: s.Silence, Progress: s.Progress, Site: s.Site, Doing: s.Doing, Where: s.Where, Options: s.Algorithms,
		Agreed: agreed(s.Algorithms, s.Silence), Explain: explainer(s.Name, s.Rank)}
}

// explainer returns what prints how a group's collectives are served, if the
// environment asks for it: on one rank, since all do the same.
func explainer(group string, rank int) *native.Explainer {
	if rank != 0 || !envvar.Debug.IsOn() {
		return nil
	}
	return native.NewExplainer(group, func(line string) { fmt.Fprintln(os.Stderr, line) })
}

// agreed is what members of a group must have in common, as a number. The limit of
// silence is a part of it: a rank's beats must come as often as the others expect them.
func agreed(o collective.Options, silence time.Duration) uint64 {
	n := uint64(silence) << 1
	if o.Deterministic {
		n++
	}
	return n
}
