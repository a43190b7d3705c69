// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Job control. The keys of a terminal, and shells, reach the launcher's process group
// alone, for every rank leads a session of its own: to stop the job is for the launcher
// to do. It stops the ranks and what they have started, gives the terminal back as the
// shell had it, and only then itself, so that the shell sees a job that is stopped. What
// continues it (fg, bg, SIGCONT) continues the ranks.

// suspends are the signals that stop a process, other than SIGSTOP, which nobody can
// catch: a terminal's key, and what a background job gets that writes to a terminal whose
// owner does not want that (stty tostop).
func suspends() []syscall.Signal { return []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTOU} }

// jobControl is the launcher's part in the job control of its shell. The zero value has
// none.
type jobControl struct {
	stop chan os.Signal
	cont chan os.Signal
	sigs []syscall.Signal
	tty  *tty

	refused bool // it has been said why this job is not stopped
}

// openJobControl begins to catch the signals that stop a job, but for those in not, and
// those that whoever started this process has it ignore.
func openJobControl(not []syscall.Signal) jobControl {
	j := jobControl{stop: make(chan os.Signal, 1), cont: make(chan os.Signal, 1), tty: openTTY()}
	for _, s := range suspends() {
		if !slices.Contains(not, s) && !signal.Ignored(s) {
			signal.Notify(j.stop, s)
			hold(s)
			j.sigs = append(j.sigs, s)
		}
	}
	signal.Notify(j.cont, syscall.SIGCONT)
	return j
}

// close ends it. After a job that was cut short the terminal is as the shell had it: a rank
// that was killed cannot have put it right.
func (j *jobControl) close(cut bool) {
	if j.stop == nil {
		return
	}
	signal.Stop(j.stop)
	signal.Stop(j.cont)
	for _, s := range j.sigs {
		release(s)
	}
	if cut {
		j.tty.leave()
	}
}

// orphanPatience is how long this process waits to be stopped by a signal that it has
// sent to itself. The system drops it where no shell could continue the process.
const orphanPatience = 50 * time.Millisecond

// sleep stops this process as if it had not caught the signal, and returns when somebody
// has continued it.
func (j *jobControl) sleep(s syscall.Signal) {
	select {
	case <-j.cont: // of an earlier time
	default:
	}
	release(s)
	stopSelf(s)
	select {
	case <-j.cont:
	case <-time.After(orphanPatience):
	}
	hold(s)
}

// suspend stops the job and this process until it is continued.
func (a *agent) suspend(s syscall.Signal) {
	if a.cfg.Nodes != nil {
		if !a.control.refused {
			a.control.refused = true
			a.say("a job of several machines is not stopped by " + signalName(s) + ": the others would give this machine up. Ctrl-C ends it")
		}
		return
	}
	if s == syscall.SIGTTOU && a.control.tty.has() {
		return // of a write before: each gets one until this process is stopped
	}
	begin := time.Now()
	var workers []int
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			workers = append(workers, w.proc.Pid)
		}
	}
	stopped := a.orphans.suspend(workers)
	a.control.tty.leave()
	a.control.sleep(s)
	a.control.tty.enter()
	for _, pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	a.do(resumed{time.Since(begin)})
}
