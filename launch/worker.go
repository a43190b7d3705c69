// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// agentFD is the descriptor at which a worker finds the agent's pipe: the first after
// standard input, output and error.
const agentFD = 3

// worker is one rank's process.
type worker struct {
	proc  *os.Process // nil: the process has not been started
	pipe  *agentpipe.Writer
	tail  *tail
	files []*os.File // the agent's ends of its output pipes
	ended bool

	suspended bool // it was stopped (SIGSTOP) when the agent asked it to end
}

// startAll starts the workers in the order of their ranks. On an error, i is the first
// worker that does not run.
func (a *agent) startAll(ctx context.Context) (i int, err error) {
	a.workers = make([]*worker, a.cfg.NumRanks)
	for i := range a.workers {
		a.workers[i] = &worker{}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if err = a.serveStore(ctx); err != nil {
		return 0, err
	}
	if a.logs, err = a.Host.logs.begin(a.attempt.Number, a.cfg.NumRanks); err != nil {
		return 0, fmt.Errorf("log files of attempt %d: %w", a.attempt.Number, err)
	}
	for i, env := range a.environments() {
		if err := a.start(i, env, null); err != nil {
			return i, fmt.Errorf("start rank %d (%s): %w", a.rank(i), a.program(i).argv[0], err)
		}
	}
	return 0, nil
}

// start starts one worker, and what copies its output and waits for its end.
func (a *agent) start(i int, env []string, null *os.File) (err error) {
	w, c := a.workers[i], &channels{}
	defer func() {
		for _, f := range c.theirs {
			f.Close()
		}
		if err != nil {
			closeRelays(c.relays)
			w.close()
		}
	}()
	if err := a.connect(i, c, null); err != nil {
		return err
	}
	var cpus []int
	if a.bound != nil {
		cpus = a.bound[i]
	}
	attr := workerAttr()
	a.cgroup.join(attr)
	prog := a.program(i)
	err = boundTo(cpus, func() (err error) {
		w.proc, err = os.StartProcess(prog.path, prog.argvOf(i), &os.ProcAttr{Dir: a.cfg.Dir, Env: env, Files: c.fds[:], Sys: attr})
		return err
	})
	if err != nil {
		if errors.Is(err, syscall.ENOEXEC) {
			err = fmt.Errorf("%w: it is neither a program of this system nor a script whose first line names its interpreter (#!)", err)
		}
		return err
	}
	a.orphans.worker(w.proc.Pid)
	if a.cfg.Watcher != nil {
		a.cfg.Watcher.Started(a.rank(i), i, w.proc.Pid, a.host)
	}
	for k, r := range c.relays {
		a.relays.Go(func() { r.run(w.files[k]) })
	}
	go func() { a.exits <- wait(i, w.proc) }()
	return nil
}

// channels are what connects a worker with the agent while the worker is started.
type channels struct {
	fds    [agentFD + 1]*os.File // of the worker: standard input, output and error, and the agent's pipe
	theirs []*os.File            // those of fds that the agent closes once the worker has them
	relays []*relay              // of standard output and error; none where the worker has the agent's own
}

// connect makes the channels of a worker, and the agent's ends of them. On an error it
// leaves what it has made in c and the worker, for start to close.
func (a *agent) connect(i int, c *channels, null *os.File) (err error) {
	w := a.workers[i]
	// Rank 0 alone reads the standard input: of several readers, each would get a part.
	c.fds[0] = null
	if _, err := os.Stdin.Stat(); err == nil && i == 0 {
		c.fds[0] = os.Stdin
	}
	if a.cfg.PassRank0 && i == 0 {
		c.fds[1], c.fds[2] = os.Stdout, os.Stderr
	} else {
		for fd := 1; fd <= 2; fd++ {
			ours, theirs, err := os.Pipe()
			if err != nil {
				return err
			}
			w.files, c.theirs = append(w.files, ours), append(c.theirs, theirs)
			c.fds[fd] = theirs
		}
		w.tail = &tail{}
		if c.relays, err = a.relaysOf(i, w.tail); err != nil {
			return err
		}
	}
	if c.fds[agentFD], w.pipe, err = agentpipe.Pipe(); err != nil {
		return err
	}
	c.theirs = append(c.theirs, c.fds[agentFD])
	return nil
}

// relaysOf makes the relays of a worker's standard output and error. The tail keeps the
// last lines of standard error.
func (a *agent) relaysOf(i int, t *tail) (relays []*relay, err error) {
	prefix := func(teed bool) []byte {
		return linePrefix(a.cfg.Logs.Prefix, a.cfg.Role, a.host, a.rank(i), i, teed)
	}
	for k, console := range []*sink{a.stdout, a.stderr} {
		r, err := a.logs.relay(k, i, prefix, console)
		if err != nil {
			closeRelays(relays)
			return nil, err
		}
		r.hider.secret = a.secret
		if w := a.cfg.Watcher; w != nil {
			rank := a.rank(i)
			r.watch = func(line []byte) { w.Line(rank, k == 1, line) }
		}
		relays = append(relays, r)
	}
	relays[1].tail = t
	return relays, nil
}

func closeRelays(relays []*relay) {
	for _, r := range relays {
		r.close()
	}
}

func (w *worker) close() {
	for _, f := range w.files {
		f.Close()
	}
	if w.pipe != nil {
		w.pipe.Close()
	}
}

// wait turns the end of a process into an event.
func wait(i int, proc *os.Process) exited {
	st, err := proc.Wait()
	if err != nil { // somebody else has reaped it
		return exited{local: i, code: 1}
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exited{local: i, code: -1, sig: ws.Signal()}
	}
	return exited{local: i, code: st.ExitCode()}
}

// tell tells the live workers that another one has ended, through their pipes. A worker that
// does not read its pipe misses that, but its socket to the dead rank breaks all the same.
func (a *agent) tell(end workerEnd) {
	e := agentpipe.Event{
		Kind: agentpipe.KindExited, Rank: a.rank(end.local), LocalRank: end.local,
		PID: a.workers[end.local].proc.Pid, Host: a.host, Code: end.code,
	}
	if end.sig != 0 {
		e.Signal = end.sig.String()
	}
	a.pass(e)
	// Ranks that wait in no call write a dump only if they are asked to.
	if !a.recorders.told {
		a.recorders.told = true
		a.ask()
	}
}

// pass sends an event to the live workers.
func (a *agent) pass(e agentpipe.Event) {
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			_ = w.pipe.Send(e)
		}
	}
}

// deliver sends a signal to the process groups of the live workers. It also continues them,
// because a stopped process acts on a signal only when it is continued.
func (a *agent) deliver(sig syscall.Signal) {
	for _, w := range a.workers {
		if w.proc == nil || w.ended {
			continue
		}
		w.suspended = w.suspended || isStopped(w.proc.Pid)
		_ = syscall.Kill(-w.proc.Pid, sig)
		if sig != syscall.SIGKILL {
			_ = syscall.Kill(-w.proc.Pid, syscall.SIGCONT)
		}
	}
}

// drain waits until the relays have copied all that the workers have written. A reader of
// this process's output may be slow; a signal ends the wait.
func (a *agent) drain(sig *signals) {
	for _, w := range a.workers {
		if w.pipe != nil {
			w.pipe.Close()
		}
		for _, f := range w.files {
			_ = f.SetReadDeadline(time.Now().Add(drainPatience))
		}
	}
	copied := make(chan struct{})
	go func() { a.relays.Wait(); close(copied) }()
	select {
	case <-copied:
	case <-sig.ch:
		for _, w := range a.workers {
			w.close()
		}
		return
	}
	if a.numSwept > 0 {
		fmt.Fprintf(a.cfg.Stderr, "cohort: processes that the ranks had left running have been ended: %d\n", a.numSwept)
	}
}

// drainPatience is how long the relays wait for the end of the output after the last process
// has ended. The end comes at once, unless a process that the agent did not find holds a
// pipe open.
const drainPatience = time.Second
