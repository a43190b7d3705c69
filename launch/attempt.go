// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// Attempt is one start of the workers: where this host stands among the others
// and where rank 0 will listen. The next attempt is another value, with another
// port: nobody in it can meet what an earlier one has left on a wire.
type Attempt struct {
	// Number is how often the workers have been restarted after failures, from 0.
	// An attempt made because hosts have come or gone keeps the number.
	Number int
	// NodeRank is this host's place among NumNodes; 0 nodes means one.
	NodeRank, NumNodes int
	// FirstRank is the rank of this host's first worker; worker i has rank
	// FirstRank+i of WorldSize. 0 means Config.NumRanks.
	FirstRank, WorldSize int
	// FirstRoleRank and RoleWorldSize count the workers of Config.Role alone; a
	// RoleWorldSize of 0 means that all have the same role.
	FirstRoleRank, RoleWorldSize int
	// MasterAddr and MasterPort are where rank 0 listens.
	MasterAddr string
	MasterPort int
	// NodeAddrs are where the ranks of all nodes are reached, if there are several: names or
	// IP addresses, in the order of the nodes and separated by commas, of hosts whose agents have shown that they belong
	// to the job. Ranks of PyTorch, which cannot show that, are let in from there.
	NodeAddrs string
	// AgentStore says that the agent of node 0 serves PyTorch's store to all ranks, at
	// MasterAddr and MasterPort: what [Host.ServesStore] says there.
	AgentStore bool
	// News is what to tell the workers of what has happened on other hosts. May be nil.
	News <-chan agentpipe.Event
	// OnFailure is called for each worker that ends badly, as soon as it has, by
	// the goroutine of [Host.Run]: it must not wait. May be nil.
	OnFailure func(Failure)
	// OnSignal is called when this process gets a signal that it passes on, in
	// the same way. May be nil.
	OnSignal func(syscall.Signal)
	// Kill, when it is closed, has the workers killed at once. May be nil.
	Kill <-chan struct{}
}

func (a Attempt) withDefaults(cfg *Config) (Attempt, error) {
	if a.NumNodes == 0 {
		a.NumNodes = 1
	}
	if a.WorldSize == 0 {
		a.WorldSize = cfg.NumRanks
	}
	if a.RoleWorldSize == 0 {
		a.FirstRoleRank, a.RoleWorldSize = a.FirstRank, a.WorldSize
	}
	if a.MasterAddr == "" {
		a.MasterAddr = cfg.MasterAddr
	}
	switch {
	case a.Number < 0 || a.NodeRank < 0 || a.NodeRank >= a.NumNodes:
		return a, fmt.Errorf("attempt %d of node %d of %d", a.Number, a.NodeRank, a.NumNodes)
	case a.FirstRank < 0 || a.FirstRank+cfg.NumRanks > a.WorldSize:
		return a, fmt.Errorf("attempt with ranks %d to %d of a world of %d", a.FirstRank, a.FirstRank+cfg.NumRanks-1, a.WorldSize)
	case a.FirstRoleRank < 0 || a.FirstRoleRank+cfg.NumRanks > a.RoleWorldSize:
		return a, fmt.Errorf("attempt with role ranks %d to %d of %d", a.FirstRoleRank, a.FirstRoleRank+cfg.NumRanks-1, a.RoleWorldSize)
	case a.MasterPort < 1 || a.MasterPort > 65535:
		return a, fmt.Errorf("attempt with master port %d", a.MasterPort)
	}
	return a, nil
}

// Host is this machine's part of a job: what stays from one attempt to the next.
// [Open] makes it, [Host.Run] runs one attempt after the other, and
// [Host.Close] ends it. Its methods are for one goroutine at a time.
type Host struct {
	cfg    Config
	job    job
	progs  []*program // of each of Config.Programs, or one
	logs   *logTree
	bound  [][]int // the processors of each rank; nil: all
	sig    signals
	guard  *guard
	cgroup *cgroup
	// notice is nil where none is looked for.
	notice *noticeWatch
	// store is that of the last attempt: ranks of other nodes may be in it still.
	store *rankStore
}

// Open checks a configuration, builds the program and begins to catch signals;
// it starts nothing. Its errors are those of [Run].
func Open(ctx context.Context, cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkFiles(&cfg); err != nil {
		return nil, err
	}
	if cfg.Nodes == nil {
		envvar.TellTask(cfg.Stderr)
	}
	h := &Host{cfg: cfg}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if !cfg.LeaveSignals {
		h.sig.catch(cfg.Signals)
	}
	if cfg.Notice.isSet() {
		if h.notice, err = openNotice(ctx, &cfg); err != nil {
			return nil, err
		}
		if h.sig.ch == nil { // no signals, but a notice comes as one
			h.sig.ch = make(chan os.Signal, 8)
		}
	}
	if h.job, err = newJob(&cfg); err != nil {
		return nil, err
	}
	if cfg.Binding != BindNone {
		if h.bound, err = bind(cfg.Binding, cfg.NumRanks); err != nil {
			err = badConfig("Binding", "bind ranks to processors (%s): %w", cfg.Binding, err)
			return nil, err
		}
	}
	// It comes before all that would stay if this process were killed.
	h.guard = startGuard(h.job.id)
	cfg.guard = h.guard
	if h.logs, err = openLogs(&cfg); err != nil {
		return nil, err
	}
	if dir := cgroupPath(h.job.id); dir != "" {
		h.guard.tell('c', dir)
		h.cgroup = openCgroup(dir)
	}
	if err = h.resolve(ctx, &cfg); err != nil {
		return nil, err
	}
	h.watchNotice()
	return h, nil
}

// Config returns the configuration with its defaults.
func (h *Host) Config() Config { return h.cfg }

// Run starts the workers of an attempt and stays until they have ended, or ends
// them when ctx is done; nothing of them is left when it returns. The error is nil if
// all ended with code 0, else an [*Error].
func (h *Host) Run(ctx context.Context, a Attempt) error {
	a, err := a.withDefaults(&h.cfg)
	if err != nil {
		return &Error{Program: h.cfg.Program, NumRanks: max(a.WorldSize, h.cfg.NumRanks), StartErr: err}
	}
	// The thread that starts workers must outlive them: see workerAttr.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return newAgent(h, a).run(ctx, &h.sig)
}

// Idle is for the time between attempts, in which no worker can be told of a
// signal: it returns a context that is done when this process gets one, with an
// [*Error] that names it as the cause. The function returned ends this; a
// signal that has come is then what the next attempt begins with.
func (h *Host) Idle(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-h.sig.ch:
			cancel(&Error{Program: h.cfg.Program, NumRanks: h.cfg.NumRanks, Signal: s.(syscall.Signal), Notice: h.Notice()})
			select {
			case h.sig.ch <- s:
			default: // others are waiting there
			}
		case <-stop:
		}
	}()
	return ctx, func() {
		close(stop)
		<-ended
		cancel(nil)
	}
}

// Close removes what the job has made for itself, and gives the signals back.
func (h *Host) Close() {
	h.endStore()
	h.notice.close()
	h.logs.close()
	for _, p := range h.progs {
		p.remove()
	}
	h.cgroup.close()
	h.guard.stop() // the last: it guards all of that
	h.sig.release()
}

// hostName is what this machine calls itself.
func hostName() string {
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "localhost"
}
