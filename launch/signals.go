// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// signals are the channels on which the agent's process gets signals while it runs a job.
// The zero value gets none.
type signals struct {
	ch   chan os.Signal
	pipe chan os.Signal
	dump chan os.Signal // gets SIGUSR1, which asks where the ranks are
}

// defaultSignals are the signals that end a job by default.
func defaultSignals() []syscall.Signal {
	return []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}
}

// signalNames writes a list of signals as torchrun does.
func signalNames(list []syscall.Signal) string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = signalName(s)
	}
	return strings.Join(names, ",")
}

// ParseSignals reads the value of torchrun's --signals-to-handle: names of signals, with or
// without SIG, separated by commas.
func ParseSignals(text string) ([]syscall.Signal, error) {
	var out []syscall.Signal
	for name := range strings.SplitSeq(text, ",") {
		name = strings.ToUpper(strings.TrimSpace(name))
		s := unix.SignalNum(name)
		if s == 0 {
			s = unix.SignalNum("SIG" + name)
		}
		switch {
		case s == 0:
			return nil, fmt.Errorf("%q is no signal of this system: give names such as SIGTERM,SIGUSR1", name)
		case s == syscall.SIGKILL || s == syscall.SIGSTOP:
			return nil, fmt.Errorf("%s cannot be handled by any program", name)
		case s == syscall.SIGCHLD || s == syscall.SIGPIPE || s == syscall.SIGURG:
			return nil, fmt.Errorf("the launcher needs %s for itself", name)
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

// catch begins to catch the signals of the list. An ignored SIGHUP (nohup) stays ignored.
func (s *signals) catch(list []syscall.Signal) {
	s.ch = make(chan os.Signal, 8)
	for _, sig := range list {
		if sig != syscall.SIGHUP || !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	// With a handler for SIGPIPE, a write to a closed standard output is an error, which
	// the relay passes on to the rank. Without, it would end this process. Nobody reads the
	// channel.
	s.pipe = make(chan os.Signal, 1)
	signal.Notify(s.pipe, syscall.SIGPIPE)
	if !slices.Contains(list, syscall.SIGUSR1) {
		s.dump = make(chan os.Signal, 1)
		signal.Notify(s.dump, syscall.SIGUSR1)
	}
}

func (s *signals) release() {
	for _, ch := range []chan os.Signal{s.ch, s.pipe, s.dump} {
		if ch != nil {
			signal.Stop(ch)
		}
	}
}

// signalName returns the usual name of a signal, such as SIGTERM.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
