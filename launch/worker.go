// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
)

// agentFD is the number under which a worker finds its pipe from the agent:
// the first after standard input, output and error.
const agentFD = 3

// worker is one rank's process.
type worker struct {
	proc  *os.Process // nil: not started
	pipe  *agentpipe.Writer
	tail  *tail
	files []*os.File // the agent's ends of its output pipes
	ended bool

	suspended bool // it was stopped (SIGSTOP) when the agent ended it
}

// startAll starts the workers in the order of their ranks. On an error, i is
// the first that does not run.
func (a *agent) startAll(ctx context.Context, stdout, stderr *sink) (i int, err error) {
	a.workers = make([]*worker, a.cfg.NumRanks)
	for i := range a.workers {
		a.workers[i] = &worker{}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if err = a.serveStore(ctx, stderr); err != nil {
		return 0, err
	}
	if a.logs, err = a.Host.logs.begin(a.attempt.Number, a.cfg.NumRanks); err != nil {
		return 0, fmt.Errorf("log files of attempt %d: %w", a.attempt.Number, err)
	}
	for i, env := range a.environments() {
		if err := a.start(i, env, null, stdout, stderr); err != nil {
			return i, fmt.Errorf("start rank %d (%s): %w", a.rank(i), a.program(i).argv[0], err)
		}
	}
	return 0, nil
}

func (a *agent) start(i int, env []string, null *os.File, stdout, stderr *sink) (err error) {
	w := a.workers[i]
	var theirs []*os.File // to close here once the worker has them
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			w.close()
		}
	}()
	// Rank 0 alone reads the standard input: several readers of one stream
	// would each get a part of it.
	files := []*os.File{null, nil, nil, nil}
	if _, err := os.Stdin.Stat(); err == nil && i == 0 {
		files[0] = os.Stdin
	}
	pass := a.cfg.PassRank0 && i == 0
	if pass {
		files[1], files[2] = os.Stdout, os.Stderr
	} else {
		for fd := 1; fd <= 2; fd++ {
			r, wr, err := os.Pipe()
			if err != nil {
				return err
			}
			w.files, theirs = append(w.files, r), append(theirs, wr)
			files[fd] = wr
		}
	}
	var relays []*relay
	if !pass {
		w.tail = &tail{}
		if relays, err = a.relaysOf(i, w.tail, stdout, stderr); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				closeRelays(relays)
			}
		}()
	}
	if files[agentFD], w.pipe, err = agentpipe.Pipe(); err != nil {
		return err
	}
	theirs = append(theirs, files[agentFD])

	prog := a.program(i)
	argv := make([]string, len(prog.argv))
	for k, s := range prog.argv {
		argv[k] = strings.ReplaceAll(s, "${local_rank}", strconv.Itoa(i))
	}
	var cpus []int
	if a.bound != nil {
		cpus = a.bound[i]
	}
	attr := workerAttr()
	a.cgroup.join(attr)
	err = boundTo(cpus, func() (err error) {
		w.proc, err = os.StartProcess(prog.path, argv, &os.ProcAttr{Dir: a.cfg.Dir, Env: env, Files: files, Sys: attr})
		return err
	})
	if err != nil {
		if errors.Is(err, syscall.ENOEXEC) {
			err = fmt.Errorf("%w: not a program of this system, nor a script whose first line is #! and its interpreter", err)
		}
		return err
	}
	a.orphans.worker(w.proc.Pid)
	for k, r := range relays {
		a.relays.Go(func() { r.run(w.files[k]) })
	}
	go func() { a.exits <- wait(i, w.proc) }()
	return nil
}

// relaysOf makes what copies the two streams of a worker.
func (a *agent) relaysOf(i int, t *tail, consoles ...*sink) (relays []*relay, err error) {
	prefix := func(teed bool) []byte {
		return linePrefix(a.cfg.Logs.Prefix, a.cfg.Role, a.host, a.rank(i), i, teed)
	}
	for k, console := range consoles {
		r, err := a.logs.relay(k, i, prefix, console)
		if err != nil {
			closeRelays(relays)
			return nil, err
		}
		r.hider.secret = a.secret
		relays = append(relays, r)
	}
	relays[len(relays)-1].tail = t // of the standard error
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

// tell writes to the pipes of the live workers. One that does not read, or is
// ending, misses the news; its socket to the dead rank still breaks.
func (a *agent) tell(end workerEnd) {
	e := agentpipe.Event{
		Kind: agentpipe.KindExited, Rank: a.rank(end.local), LocalRank: end.local,
		PID: a.workers[end.local].proc.Pid, Host: a.host, Code: end.code,
	}
	if end.sig != 0 {
		e.Signal = end.sig.String()
	}
	a.pass(e)
	// Ranks that do not hear of it in a call of their own say where they are.
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

// deliver signals whole process groups. A stopped process acts on a signal only
// when it is continued.
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

// drain waits until everything that was written has been copied. A slow reader
// of our output may take its time; a signal ends the wait.
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
	if a.swept > 0 {
		fmt.Fprintf(a.cfg.Stderr, "cohort: processes that the ranks had left running have been ended: %d\n", a.swept)
	}
}

// drainPatience is how long the end of the output may take after the last
// process has gone. It is there at once, unless a process that nobody could
// find holds a pipe open.
const drainPatience = time.Second
