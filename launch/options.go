// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"io"
	"time"
)

// SpawnOption changes how [Spawn] starts and ends its ranks. Each option sets the
// field of [Config] that has its name, and is described there.
type SpawnOption func(*spawnOptions)

type spawnOptions struct{ cfg Config }

// WithMasterAddr sets [Config].MasterAddr, the address at which rank 0 listens.
func WithMasterAddr(addr string) SpawnOption {
	return func(o *spawnOptions) { o.cfg.MasterAddr = addr }
}

// WithMasterPort sets [Config].MasterPort, the port at which rank 0 listens.
func WithMasterPort(port int) SpawnOption {
	return func(o *spawnOptions) { o.cfg.MasterPort = port }
}

// WithEnv sets [Config].Env, the environment that the ranks inherit, in place of
// os.Environ().
func WithEnv(env []string) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Env = env }
}

// WithOutput sets [Config].Stdout and [Config].Stderr, which get the output of the
// ranks. A nil writer stands for the default.
func WithOutput(stdout, stderr io.Writer) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Stdout, o.cfg.Stderr = stdout, stderr }
}

// WithPassRank0 sets [Config].PassRank0: rank 0 writes to this process's own standard
// output and error.
func WithPassRank0() SpawnOption {
	return func(o *spawnOptions) { o.cfg.PassRank0 = true }
}

// WithGrace sets [Config].Grace, the time between a signal and SIGKILL.
func WithGrace(d time.Duration) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Grace = d }
}

// WithFailGrace sets [Config].FailGrace, the time between a failure and SIGTERM.
func WithFailGrace(d time.Duration) SpawnOption {
	return func(o *spawnOptions) { o.cfg.FailGrace = d }
}

// WithSurvivors sets [Config].Survivors: when a rank fails, the others go on.
func WithSurvivors() SpawnOption {
	return func(o *spawnOptions) { o.cfg.Survivors = true }
}

// WithMaxRestarts sets [Config].MaxRestarts, how often all ranks are started again
// after a failure.
func WithMaxRestarts(n int) SpawnOption {
	return func(o *spawnOptions) { o.cfg.MaxRestarts = n }
}

// WithLeaveSignals sets [Config].LeaveSignals: signals are the caller's to handle.
func WithLeaveSignals() SpawnOption {
	return func(o *spawnOptions) { o.cfg.LeaveSignals = true }
}

// WithExclusive sets [Config].Exclusive: this process does nothing else.
func WithExclusive() SpawnOption {
	return func(o *spawnOptions) { o.cfg.Exclusive = true }
}

// WithNotice sets [Config].Notice, where to look for notice that this machine is about
// to go.
func WithNotice(n Notice) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Notice = n }
}

// WithWatcher sets [Config].Watcher, which is told what happens to the ranks.
func WithWatcher(w Watcher) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Watcher = w }
}

// WithFigures sets [Config].Figures, which can be asked what the ranks have done.
func WithFigures(f *Figures) SpawnOption {
	return func(o *spawnOptions) { o.cfg.Figures = f }
}
