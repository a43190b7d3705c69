// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"runtime"
	"syscall"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Host is this machine's part of a job. It lives longer than the job's attempts: [Open]
// makes it, [Host.Run] runs one attempt after the other, and [Host.Close] ends it. Only
// one goroutine at a time may use it.
type Host struct {
	cfg    Config
	job    job
	progs  []*program // of each of Config.Programs, or one
	logs   *logTree
	bound  [][]int // the processors of each rank; nil: ranks are not bound
	sig    signals
	guard  *guard
	cgroup *cgroup
	// notice is nil where Config.Notice is the zero value.
	notice *noticeWatch
	// store is the store of the last attempt. Ranks of other nodes may still use it.
	store *rankStore
}

// Open checks a configuration, builds the program and begins to catch signals. It starts
// no rank. Its errors are those of [Run].
func Open(ctx context.Context, cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Nodes == nil && cfg.MasterPort != 0 {
		if err := checkPort(cfg.MasterAddr, cfg.MasterPort); err != nil {
			return nil, &ConfigError{Field: "MasterPort", Err: err}
		}
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
		if h.sig.ch == nil { // a notice comes as a signal
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
	// The guard comes before everything that would stay if this process were killed.
	h.guard = startGuard(h.job.id)
	if h.logs, err = openLogs(&cfg, h.guard); err != nil {
		return nil, err
	}
	if dir := cgroupPath(h.job.id); dir != "" {
		h.guard.tell('c', dir)
		h.cgroup = openCgroup(dir)
	}
	if err = h.resolve(ctx); err != nil {
		return nil, err
	}
	h.watchNotice()
	return h, nil
}

// Config returns the configuration with its defaults.
func (h *Host) Config() Config { return h.cfg }

// Run starts the workers of an attempt and waits until they have ended. It ends them when
// ctx is done. Nothing of them is left when it returns. The error is nil if all workers
// ended with code 0, else an [*Error].
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

// Idle is for the time between attempts, when there is no worker to pass a signal to. It
// returns a context that is done when this process gets a signal. The context's cause is
// an [*Error] that names the signal. The returned function ends this. The next attempt
// then gets the signal again, if one has come.
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

// Close removes what the job has made for itself, and stops catching signals.
func (h *Host) Close() {
	h.endStore()
	h.notice.close()
	h.logs.close()
	for _, p := range h.progs {
		p.remove()
	}
	h.cgroup.close()
	h.guard.stop() // last, because it guards all of the above
	h.sig.release()
}

// hostName is what this machine calls itself.
func hostName() string {
	if name, err := os.Hostname(); err == nil {
		return name
	}
	return "localhost"
}

// job is what all ranks of one launch have in common.
type job struct {
	id     string // marks the processes of this job; not secret
	token  string
	nodeID string
}

// newJob makes what the ranks share. A token or a node id that the user has set in the
// environment is used as it is.
func newJob(cfg *Config) (job, error) {
	j := job{id: randomHex(8), token: valueOf(cfg.Env, envvar.Token), nodeID: valueOf(cfg.Env, envvar.NodeID)}
	if path := valueOf(cfg.Env, envvar.TokenFile); j.token == "" && path != "" {
		token, err := transport.ReadTokenFile(path)
		if err != nil {
			return j, badConfig("Env", "%s: %w", envvar.TokenFile, err)
		}
		j.token = token.Text()
	}
	if j.token == "" {
		j.token = transport.NewToken().Text()
	} else if _, err := transport.ParseToken(j.token); err != nil {
		return j, badConfig("Env", "%s: %w", envvar.Token, err)
	}
	if j.nodeID == "" {
		j.nodeID = "node-" + randomHex(8)
	}
	return j, nil
}

// randomHex returns n random bytes as text.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: it ends the process instead
	return hex.EncodeToString(b)
}

// Token returns the job's token, a secret. The agents of several hosts prove with it that
// they belong to one job.
func (h *Host) Token() string { return h.job.token }

// Nodes joins this host with others. It makes the attempts that they have in common and
// runs them on this host ([Host.Run]) until the job has ended.
type Nodes interface {
	Run(ctx context.Context, h *Host) error
}
