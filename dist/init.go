// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/diagnosis"
	"github.com/cohort-ml/cohort/dist/internal/native"
)

// Init forms the group of all ranks of a job. Each rank calls it once. Init
// returns when all ranks have called it. By default the environment says which rank this
// process is, with the variables that `cohort run` and torchrun set. If none of them is
// set, or if the world size is 1, the group is this process alone and
// needs no network. Several ranks must share a job token (COHORT_TOKEN),
// which the launcher makes. ctx bounds only the forming of the group.
//
// With [WithBackend]("gloo") the job is one of PyTorch's, which needs no token; see the
// package's section on PyTorch. The rest of this comment is about Cohort's own jobs.
//
// The ranks find each other through a store. Rank 0 serves it at MASTER_ADDR:MASTER_PORT, with
// two exceptions: [WithStore] gives another store, and torchrun may serve one there itself
// (TORCHELASTIC_USE_AGENT_STORE=True). torchrun makes no token:
// set COHORT_TOKEN (`cohort token` prints one).
//
// Ranks of one node talk through shared memory, unless COHORT_TRANSPORT is unix, tcp or tls.
// Ranks of several nodes talk over TCP, at the address of the interface that
// [Group.Interface] names. A connection that does not prove the token is closed
// without an answer, and a line on standard error reports it. A rank that waits for others
// writes their numbers to standard error after five seconds, and then once a minute.
func Init(ctx context.Context, opts ...Option) (*Group, error) {
	o := options{Settings: backend.Settings{Timeout: DefaultTimeout, Silence: DefaultSilence}}
	if err := o.silenceFromEnv(); err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if err := o.apply(opts); err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if err := o.backendFromEnv(); err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	job, err := findBackend(o.backendFor(hostKind)).start(ctx, &o.Settings)
	if err != nil {
		return nil, fmt.Errorf("dist: init: %w", err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, DefaultInitTimeout,
			fmt.Errorf("not all ranks came within %v: %w", DefaultInitTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	return formWorld(ctx, job, &o)
}

// formWorld forms the group of all ranks of a job.
func formWorld(ctx context.Context, job backend.Job, o *options) (*Group, error) {
	rank, size := job.Place()
	host, pid := "", os.Getpid()
	h := native.HostFrom(ctx)
	if h != nil {
		host, pid = h.Name, h.PID
	} else {
		host, _ = os.Hostname() // for messages only
	}
	box := diagnosis.NewBlackBox(rank, size, host, pid)
	stopDumps := box.DumpOn(o.dumpSignal)
	leave := func(pending bool) error {
		stopDumps()
		return job.Close(pending)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	roster, forming, err := job.Meet(ctx, end, box.Answer)
	var g *Group
	if err == nil {
		g = newWorld(job, roster, ranksOf(roster.Where), o)
		g.box, g.host = box, h
		g.setLocal()
		g.openLog()
		err = forming.End(ctx, g.form(ctx, end, forming, nil))
	}
	if err != nil {
		_ = leave(true)
		return nil, err
	}
	g.mu.Lock()
	ofBackend := g.onClose
	g.onClose = func(pending bool) error {
		var err error
		if ofBackend != nil {
			err = ofBackend(pending)
		}
		return errors.Join(err, leave(pending))
	}
	g.mu.Unlock()
	g.watchCalls()
	return g, nil
}

// ranks is all ranks of a job, by rank. Ranks that are goroutines share it.
type ranks struct {
	members []Member
	nodes   []string
	world   []int
}

func ranksOf(where []backend.Where) ranks {
	all := ranks{make([]Member, len(where)), make([]string, len(where)), make([]int, len(where))}
	for r, at := range where {
		all.members[r], all.nodes[r], all.world[r] = Member{Rank: r, Host: at.Host, PID: at.PID}, at.Node, r
	}
	return all
}

// newWorld returns the group of all ranks, not yet open.
func newWorld(job backend.Job, roster *backend.Roster, all ranks, o *options) *Group {
	rank, size := job.Place()
	g := &Group{
		membership: membership{name: backend.World, key: backend.World, rank: rank, size: size, job: job,
			members: all.members, nodes: all.nodes, world: all.world, node: all.nodes[rank],
			keys: roster.Keys, store: roster.Store, reached: roster.Interface,
			timeout: o.Timeout, silence: o.Silence, algorithms: o.Algorithms, devices: o.backends},
		traffic: traffic{transport: "none"},
	}
	g.init()
	return g
}
