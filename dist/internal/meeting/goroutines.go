// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"context"
	"os"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// goroutine is the [backend.Job] of a rank that is a goroutine: all ranks of the job are in
// this process and share memory.
type goroutine struct {
	rank, size int
	where      []backend.Where
	keys       store.Store
	ranks      []*native.Shm // of the group of all ranks; nil where that is one
	meetings   *native.GoMeetings
}

// Goroutines returns the jobs of n ranks that are goroutines of this process.
func Goroutines(n int, how native.GoRanksOptions, s *backend.Settings) []backend.Job {
	host, _ := os.Hostname() // for messages only
	where, members, world := make([]backend.Where, n), make([]fault.Member, n), make([]int, n)
	for r := range members {
		where[r], members[r], world[r] = backend.Where{Host: host, Node: host}, fault.Member{Rank: r, Host: host}, r
	}
	var ranks []*native.Shm
	if n > 1 {
		ranks = native.NewGoRanks(native.Config{Group: backend.World, Key: backend.World, Members: members, World: world, Timeout: s.Timeout, Options: s.Algorithms, Topology: collective.OneNode(n), Explain: explainer(backend.World, 0)}, how)
	}
	keys, meetings := store.NewMemory(), native.NewGoMeetings(how)
	jobs := make([]backend.Job, n)
	for r := range jobs {
		jobs[r] = &goroutine{rank: r, size: n, where: where, keys: keys, ranks: ranks, meetings: meetings}
	}
	return jobs
}

// Alone returns the job of a process that is its only rank.
func Alone(s *backend.Settings) backend.Job {
	host, _ := os.Hostname() // for messages only
	return &goroutine{size: 1, where: []backend.Where{{Host: host, PID: os.Getpid(), Node: NodeID(s.Node)}},
		keys: store.NewMemory(), meetings: native.NewGoMeetings(native.GoRanksOptions{})}
}

// Place implements [backend.Job].
func (j *goroutine) Place() (rank, worldSize int) { return j.rank, j.size }

// Meet implements [backend.Job]. The others are there already.
func (j *goroutine) Meet(context.Context, context.CancelCauseFunc, func(agentpipe.Event)) (*backend.Roster, backend.Forming, error) {
	return &backend.Roster{Where: j.where, Keys: j.keys, Store: store.Prefix(j.keys, "user/")}, &goWorld{j}, nil
}

// NewGroup implements [backend.Job].
func (j *goroutine) NewGroup(_ context.Context, end context.CancelCauseFunc, parent *backend.Parent, w *backend.Wish) (backend.Forming, error) {
	return forming(newSubgroup(j, j.open, end, parent, w))
}

// open opens a communicator for a group of some ranks.
func (j *goroutine) open(_ context.Context, s *backend.Spec) (*backend.Membership, error) {
	cfg := config(s)
	cfg.Topology = collective.OneNode(len(s.World))
	comm, err := j.meetings.Join(cfg)
	if err != nil {
		return nil, err
	}
	return &backend.Membership{Comm: comm, Transport: "goroutines"}, nil
}

// Close implements [backend.Job].
func (j *goroutine) Close(bool) error { return nil }

// goWorld is the forming of the group of all goroutine ranks.
type goWorld struct{ j *goroutine }

// Plan implements [backend.Forming].
func (w *goWorld) Plan() backend.Plan { return backend.Plan{Job: w.j} }

// Open implements [backend.Forming].
func (w *goWorld) Open(_ context.Context, s *backend.Spec) (*backend.Membership, error) {
	if w.j.ranks == nil {
		return &backend.Membership{Transport: "none"}, nil
	}
	comm := w.j.ranks[w.j.rank]
	comm.SetProgress(s.Progress)
	comm.SetRecorder(s.Site, s.Doing)
	return &backend.Membership{Comm: comm, Transport: "goroutines"}, nil
}

// Complete implements [backend.Forming].
func (w *goWorld) Complete(context.Context) error { return nil }

// End implements [backend.Forming].
func (w *goWorld) End(_ context.Context, err error) error { return err }
