// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// drainPatience is how long the end of the output may take after the last
// process has gone. It is there at once, unless a process that nobody could
// find holds a pipe open.
const drainPatience = time.Second

// agent is the thin shell around the machine: it starts processes, turns what
// happens into events and carries actions out. One goroutine runs it.
type agent struct {
	*Host
	attempt Attempt
	secret  secret
	host    string
	machine *machine
	control jobControl
	workers []*worker
	exits   chan exited
	orphans *orphans
	relays  sync.WaitGroup
	begin   time.Time
	// recorders is where the ranks' flight recorders are.
	recorders *recorders
	logs      *attemptLogs
	memory    *memoryWatch

	startErr   error
	hopeless   error // why the ranks cannot come together
	unkillable []int
	swept      int    // processes that workers had left behind
	freed      uint64 // processor time of the killed at the last look
	sweeps     bool   // strays have been killed
	frees      bool   // it has been said that they take long
	over       bool
}

// worker is one rank's process.
type worker struct {
	proc  *os.Process // nil: not started
	pipe  *agentpipe.Writer
	tail  *tail
	files []*os.File // the agent's ends of its output pipes
	ended bool

	suspended bool // it was stopped (SIGSTOP) when the agent ended it
}

func newAgent(h *Host, a Attempt) *agent {
	p := defaultPatience
	p.fail, p.grace = h.cfg.FailGrace, h.cfg.Grace
	m := newMachine(h.cfg.NumRanks, p)
	m.survivors = h.cfg.Survivors
	return &agent{
		Host: h, attempt: a, secret: newSecret(h.job.token), host: hostName(),
		machine: m,
		exits:   make(chan exited, h.cfg.NumRanks),

		recorders: newRecorders(&h.cfg),
	}
}

// rank is the rank of a worker in the job; local is the way back, -1 for a rank
// of another host.
func (a *agent) rank(local int) int { return a.attempt.FirstRank + local }

func (a *agent) local(rank int) int {
	if i := rank - a.attempt.FirstRank; i >= 0 && i < len(a.workers) {
		return i
	}
	return -1
}

// newJob makes what the ranks share. A token, in whichever of its variables, or
// node id that the user has set holds.
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

// run starts the workers and stays until the machine is done.
func (a *agent) run(ctx context.Context, sig *signals) error {
	a.begin = time.Now()
	a.memory = watchMemory()
	defer a.memory.close()
	a.orphans = openOrphans(a.cfg.Exclusive, a.job.id, a.cgroup)
	defer a.orphans.close()
	if !a.cfg.LeaveSignals {
		a.control = openJobControl(a.cfg.Signals)
		defer func() { a.control.close(len(a.machine.failures) > 0 || a.machine.interrupts > 0 || a.machine.canceled) }()
	}
	childEnded := make(chan os.Signal, 1)
	signal.Notify(childEnded, syscall.SIGCHLD)
	defer signal.Stop(childEnded)

	stdout, stderr := newSinks(a.cfg.Stdout, a.cfg.Stderr)
	if a.attempt.NumNodes == 1 { // else ranks of other nodes may be in it still
		defer a.endStore()
	}
	failed, err := a.startAll(ctx, stdout, stderr)
	if a.guard != nil {
		a.orphans.keep(a.guard.proc.Pid)
		for _, w := range a.workers {
			if w.proc != nil {
				a.guard.watch(w.proc.Pid, true)
			}
		}
	}
	if err != nil {
		a.startErr = limited(err)
		a.do(startFailed{failed})
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	canceled, kill := ctx.Done(), a.attempt.Kill
	var look *lookout
	for !a.over {
		timer.Stop()
		if w := a.machine.wake(); !w.IsZero() {
			timer.Reset(time.Until(w))
		}
		select {
		case e := <-a.exits:
			a.do(e)
			if a.cfg.Survivors && a.onlyStopped() {
				a.do(onlyStopped{})
			}
		case s := <-sig.ch:
			if s := s.(syscall.Signal); s == syscall.SIGINT && a.machine.phase == running && look == nil {
				look = a.lookBefore(s, stderr)
			} else {
				look = a.passOn(look)
				a.do(signalled{s})
			}
		case <-look.over():
			look = a.passOn(look)
		case s := <-a.control.stop:
			a.suspend(s.(syscall.Signal), stderr)
		case <-a.control.cont:
			a.control.tty.enter()
		case <-sig.dump:
			a.view(stderr)
		case <-canceled:
			canceled = nil
			a.do(cancelled{})
		case a.hopeless = <-a.store.hopeless():
			if a.machine.phase == running || a.machine.phase == failing {
				a.do(cancelled{})
			}
		case <-kill:
			kill = nil
			a.do(hurried{})
		case <-timer.C:
			if a.machine.givesUp(time.Now()) && a.isFreeing(stderr) {
				a.do(freeing{})
			}
			a.do(ticked{})
		case e, ok := <-a.attempt.News:
			if !ok {
				a.attempt.News = nil
				break
			}
			a.pass(e)
		case <-childEnded:
			if a.machine.phase < sweeping {
				a.orphans.reap()
			}
		}
	}
	a.drain(sig)
	a.logs.end()
	return a.result(ctx)
}

// do is one step of the machine and what follows from it.
func (a *agent) do(e event) {
	if e, ok := e.(exited); ok {
		a.workers[e.local].ended = true
		a.guard.watch(a.workers[e.local].proc.Pid, false)
	}
	if e, ok := e.(signalled); ok && a.attempt.OnSignal != nil {
		a.attempt.OnSignal(e.sig)
	}
	known := len(a.machine.failures)
	actions := a.machine.step(time.Now(), e)
	for _, end := range a.machine.failures[known:] {
		if a.attempt.OnFailure != nil {
			a.attempt.OnFailure(a.failure(end))
		}
	}
	for _, act := range actions {
		switch act := act.(type) {
		case tell:
			a.tell(act.ended)
		case deliver:
			a.deliver(act.sig)
			if act.sig == syscall.SIGKILL {
				a.freed = a.ticks()
			}
		case sweep:
			if act.sig == syscall.SIGKILL && !a.sweeps {
				a.sweeps, a.freed = true, a.ticks()
			}
			n := a.orphans.signal(act.sig)
			a.swept = max(a.swept, n)
			a.do(strays{n})
		case finish:
			a.unkillable, a.over = act.unkillable, true
		}
	}
}

// isFreeing reports whether the kernel works on processes that have been killed: it may
// have many gigabytes to take back. One that hangs uses no processor time.
func (a *agent) isFreeing(stderr *sink) bool {
	was := a.freed
	a.freed = a.ticks()
	if a.freed == was {
		return false
	}
	if !a.frees {
		a.frees = true
		write(stderr, []string{"what has been killed is still ending: the system takes back what it had, as much memory is"})
	}
	return true
}

// ticks sums up the processor time of the workers that live, and of strays.
func (a *agent) ticks() (sum uint64) {
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			sum += ticksOf(w.proc.Pid)
		}
	}
	return sum + a.orphans.ticks()
}

// onlyStopped reports whether there are live workers and all of them are stopped.
func (a *agent) onlyStopped() bool {
	left := false
	for _, w := range a.workers {
		if w.proc != nil && !w.ended {
			if !isStopped(w.proc.Pid) {
				return false
			}
			left = true
		}
	}
	return left
}

// tell writes to the pipes of the live workers. One that does not read, or is
// ending, misses the news; its socket to the dead rank still breaks.
func (a *agent) tell(end ending) {
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
	for i, env := range environ(&a.cfg, a.job, a.attempt, a.recorders.dir) {
		if a.bound != nil && valueOf(a.cfg.Env, envvar.NumThreads) == "" {
			env = append(env, envvar.NumThreads.Assign(strconv.Itoa(threadsOf(a.bound, i))))
		}
		env = append(env, envvar.ErrorFile.Assign(a.logs.errorFile(i)))
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

// failure is what is known of a worker that has ended badly.
func (a *agent) failure(end ending) Failure {
	w := a.workers[end.local]
	f := Failure{
		Rank: a.rank(end.local), LocalRank: end.local, Host: a.host, PID: w.proc.Pid,
		Code: end.code, Signal: end.sig, Time: end.at, After: end.at.Sub(a.begin),
		Stopped: end.stopped, Suspended: w.suspended, Tail: w.tail.last(),
	}
	a.readWords(&f)
	if p := a.program(end.local); p.isPython && f.lacksModule() {
		f.python = p.path
	}
	f.Final = f.Final || f.isFinal(w.tail.printedUsage())
	return f
}

// result is nil or *Error.
func (a *agent) result(ctx context.Context) error {
	m := a.machine
	name := a.cfg.Program
	if a.cfg.argv0 != "" { // this program, under the name that it was started by
		name = a.cfg.argv0
	}
	e := &Error{
		Program: name, NumRanks: a.attempt.WorldSize,
		Attempt: a.attempt.Number, restartsLeft: a.cfg.MaxRestarts - a.attempt.Number, itself: a.cfg.argv0 != "",
		Signal: m.stopSignal, Notice: a.Notice(), StartErr: a.startErr, NumStrays: m.numStrays,
	}
	if m.canceled {
		e.Cause = cmp.Or(context.Cause(ctx), a.hopeless)
	}
	for _, f := range m.failures {
		e.Failures = append(e.Failures, a.failure(f))
	}
	a.memory.explain(e.Failures)
	for i := range e.Failures {
		if f := &e.Failures[i]; f.Memory == "" && !f.Stopped {
			f.Memory = f.addressSpace()
		}
	}
	firstFirst(e.Failures)
	causeFirst(e.Failures)
	for _, i := range a.unkillable {
		e.Unkillable = append(e.Unkillable, a.workers[i].proc.Pid)
	}
	var report *flightlog.Report
	e.Recorders, e.RecorderDir, report = a.recorders.finish(slices.ContainsFunc(e.Failures, tellsOfRanks), len(a.workers) > 1 && len(e.sameAsFirst()) == len(a.workers)-1, a.begin, a.fates(e.Failures))
	e.Suspects = a.suspects(report, e.Failures)
	if differsFirst(e.Failures) {
		e.Suspects, e.differ = nil, true // with whom a rank differs is no more to blame than itself
	} else {
		suspectsFirst(e.Failures, e.Suspects)
	}
	for _, end := range m.left {
		if len(e.Failures) > 0 && end.at.Before(e.Failures[0].Time) {
			e.left = append(e.left, a.failure(end))
		}
	}
	if len(e.Failures) == 0 && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0 {
		return nil
	}
	if m.carriedOn() && e.Signal == 0 && e.Cause == nil && e.StartErr == nil && len(e.Unkillable) == 0 && e.NumStrays == 0 {
		e.carriedOn = true
		e.Report(a.cfg.Stderr)
		return nil
	}
	return e
}
