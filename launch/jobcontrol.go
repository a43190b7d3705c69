// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Job control. Every rank leads its own session. So the keys of a terminal (Ctrl-Z) and
// shells reach only the launcher's process group, and the launcher has to stop the job. It
// stops the ranks and all that they have started. Then it gives the terminal back as the
// shell had it. Last it stops itself, so that the shell sees a stopped job. What continues
// the launcher (fg, bg, SIGCONT) continues the ranks.

// stopSignals are the signals that stop a process and that it can catch. The key of a
// terminal sends SIGTSTP. A background job gets SIGTTOU when it writes to a terminal with
// stty tostop.
func stopSignals() []syscall.Signal { return []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTOU} }

// jobControl takes part in the job control of the shell. The zero value does not.
type jobControl struct {
	stop chan os.Signal
	cont chan os.Signal
	sigs []syscall.Signal
	tty  *tty

	refused bool // a line has said why this job is not stopped
}

// openJobControl begins to catch the signals that stop a job, except the signals in not, and
// the signals that this process ignores since its start.
func openJobControl(not []syscall.Signal) jobControl {
	j := jobControl{stop: make(chan os.Signal, 1), cont: make(chan os.Signal, 1), tty: openTTY()}
	for _, s := range stopSignals() {
		if !slices.Contains(not, s) && !signal.Ignored(s) {
			signal.Notify(j.stop, s)
			hold(s)
			j.sigs = append(j.sigs, s)
		}
	}
	signal.Notify(j.cont, syscall.SIGCONT)
	return j
}

// close ends job control. If the job was cut short, close gives the terminal back as the
// shell had it: a killed rank could not do so.
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

// orphanPatience is how long this process waits until a signal that it has sent to itself
// stops it. If no shell could continue the process, the system drops the signal.
const orphanPatience = 50 * time.Millisecond

// sleep stops this process as if it had not caught the signal. It returns when the process
// has been continued.
func (j *jobControl) sleep(s syscall.Signal) {
	select {
	case <-j.cont: // from before
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
			a.say("a job of several machines is not stopped by " + signalName(s) + ": the others would give this machine up (Ctrl-C ends the job)")
		}
		return
	}
	if s == syscall.SIGTTOU && a.control.tty.has() {
		return // it comes of an earlier write
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
