// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/signal"
	"syscall"
)

// signals are those that the agent's process gets while it runs a job. The
// zero value gets none.
type signals struct {
	ch   chan os.Signal
	pipe chan os.Signal
	dump chan os.Signal // asks where the ranks are
}

// catch begins. SIGHUP stays ignored where it is (nohup).
func (s *signals) catch() {
	s.ch = make(chan os.Signal, 8)
	signal.Notify(s.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(s.ch, syscall.SIGHUP)
	}
	// With a handler, a write to a closed standard output is an error that the
	// relay hands on to the rank, and not the end of this process. The channel
	// is never read.
	s.pipe = make(chan os.Signal, 1)
	signal.Notify(s.pipe, syscall.SIGPIPE)
	s.dump = make(chan os.Signal, 1)
	signal.Notify(s.dump, syscall.SIGUSR1)
}

func (s *signals) release() {
	signal.Stop(s.ch)
	signal.Stop(s.pipe)
	signal.Stop(s.dump)
}
