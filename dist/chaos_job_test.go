// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// chaosJob is the processes of a fault.
type chaosJob struct {
	fault *injected
	out   *outcome
	ps    []*chaosProcess
	token string
	addr  string
}

// chaosProcess is one of them.
type chaosProcess struct {
	rank   int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	agent  *agentpipe.Writer
	mu     sync.Mutex
	line   []byte
	events []chaosEvent
	other  strings.Builder
	news   chan struct{} // closed and replaced when a line has come
	waited chan struct{}
	err    error
}

func (p *chaosProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range b {
		if p.line = append(p.line, c); c != '\n' {
			continue
		}
		var e chaosEvent
		rest, ok := strings.CutPrefix(string(p.line), "chaos ")
		if ok && json.Unmarshal([]byte(rest), &e) == nil {
			p.events = append(p.events, e)
		} else {
			p.other.Write(p.line)
		}
		p.line = p.line[:0]
		close(p.news)
		p.news = make(chan struct{})
	}
	return len(b), nil
}

func (p *chaosProcess) said(rank int, what string) (chaosEvent, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e.What == what && e.Rank == rank {
			return e, true
		}
	}
	return chaosEvent{}, false
}

// await waits until a rank has said something; false if its process ends first
// or the deadline has come.
func (p *chaosProcess) await(rank int, what string, deadline time.Time) (chaosEvent, bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		p.mu.Lock()
		news := p.news
		p.mu.Unlock()
		if e, ok := p.said(rank, what); ok {
			return e, true
		}
		select {
		case <-news:
		case <-p.waited:
			return p.said(rank, what)
		case <-timer.C:
			return chaosEvent{}, false
		}
	}
}

// start starts a process.
func (j *chaosJob) start(ctx context.Context, rank int) error {
	f := j.fault
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(j.addr)
	if err != nil {
		return err
	}
	p := &chaosProcess{rank: rank, cmd: exec.CommandContext(ctx, os.Args[0]), news: make(chan struct{}), waited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), rankMain+"=chaos", chaosFault+"="+string(text), envvar.Token.Assign(j.token), envvar.Silence.Assign(f.Silence.String()))
	if !f.Inside {
		kind := f.Transport
		if kind == "mixed" {
			kind = "auto"
		}
		p.cmd.Env = append(p.cmd.Env, envvar.Transport.Assign(kind), envvar.Rank.Assign(strconv.Itoa(rank)),
			envvar.WorldSize.Assign(strconv.Itoa(f.Ranks)), envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port))
		if f.Agent {
			news, agent, err := agentpipe.Pipe()
			if err != nil {
				return err
			}
			defer news.Close()
			p.agent = agent
			p.cmd.ExtraFiles = []*os.File{news} // becomes descriptor 3
			p.cmd.Env = append(p.cmd.Env, envvar.AgentFD.Assign("3"))
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.waited)
	}()
	j.ps = append(j.ps, p)
	return nil
}

// end ends what is left of the processes.
func (j *chaosJob) end() {
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		_ = p.cmd.Process.Kill()
		<-p.waited
		if p.agent != nil {
			_ = p.agent.Close()
		}
	}
}

// of returns the process of a rank.
func (j *chaosJob) of(rank int) *chaosProcess {
	if j.fault.Inside {
		return j.ps[0]
	}
	return j.ps[rank]
}

func (j *chaosJob) wrong(format string, args ...any) {
	j.out.wrong = append(j.out.wrong, fmt.Sprintf(format, args...))
}

// hung reports a rank that does not say what it must, with what all have said and
// their stacks.
func (j *chaosJob) hung(rank int, what string) {
	var text strings.Builder
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.waited:
		case <-time.After(5 * time.Second):
		}
		p.mu.Lock()
		for _, e := range p.events {
			fmt.Fprintf(&text, "%s of rank %d: %s\n", e.What, e.Rank, e.Text)
		}
		fmt.Fprintf(&text, "the process of rank %d:\n%s", p.rank, ownStacks(p.other.String()))
		p.mu.Unlock()
	}
	j.wrong("rank %d has not said %q:\n%s", rank, what, text.String())
}

// ownStacks leaves of the stacks that a process has printed those that are in
// the module, without addresses.
func ownStacks(text string) string {
	said, stacks, ok := strings.Cut(text, "SIGQUIT: quit")
	if !ok {
		return text
	}
	for _, g := range strings.Split(stacks, "\n\n") {
		if !strings.Contains(g, "cohort/dist.(") && !strings.Contains(g, "cohort/dist/internal/native.(") {
			continue
		}
		lines := strings.Split(g, "\n")
		said += strings.TrimSpace(lines[0]) + "\n"
		for i, line := range lines[1:] {
			if place := strings.TrimSpace(line); i%2 == 1 && !strings.Contains(place, "/src/") {
				place, _, _ = strings.Cut(place, " ")
				said += "    " + place[strings.LastIndexByte(place, '/')+1:] + "\n"
			}
		}
	}
	return said
}

// makeFault runs a job with a fault and looks at it.
func makeFault(ctx context.Context, f *injected) *outcome {
	j := &chaosJob{fault: f, out: &outcome{fault: f}, token: transport.NewToken().Text()}
	port, err := transport.HoldPort("127.0.0.1")
	if err == nil {
		defer port.Close()
		j.addr = port.Addr()
		err = j.run(ctx)
		j.end()
	}
	if err != nil {
		j.wrong("%v", err)
	}
	return j.out
}

// isolateAfter is how long the others have to cut their ends.
const isolateAfter = 20 * time.Millisecond

// startPatience is how long ranks may take to be there.
const startPatience = 60 * time.Second

func (j *chaosJob) run(ctx context.Context) error {
	f := j.fault
	numProcesses := f.Ranks
	if f.Inside {
		numProcesses = 1
	}
	for r := range numProcesses {
		if f.Kind == "never comes" && r == f.Victim {
			j.ps = append(j.ps, nil)
			continue
		}
		if err := j.start(ctx, r); err != nil {
			return err
		}
	}
	var survivors []int
	for r := range f.Ranks {
		if r != f.Victim {
			survivors = append(survivors, r)
		}
	}
	if f.Kind == "never comes" {
		return j.miss(survivors)
	}
	// From when the victim strikes the others have their time.
	struck, ok := j.of(f.Victim).await(f.Victim, "fault", time.Now().Add(startPatience))
	if !ok {
		j.hung(f.Victim, "fault")
		return nil
	}
	switch f.Kind {
	case "kill":
		victim := j.of(f.Victim)
		<-victim.waited
		for _, p := range j.ps {
			if f.Agent && p != victim {
				_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: f.Victim, Code: -1, Signal: "killed"})
			}
		}
	case "cut":
		text, err := json.Marshal(struck.Links)
		if err != nil {
			return err
		}
		for _, r := range survivors {
			_, _ = j.of(r).stdin.Write(append(text, '\n'))
		}
		time.Sleep(isolateAfter)
		_, _ = j.of(f.Victim).stdin.Write([]byte("[]\n"))
	case "comes twice":
		if err := j.twice(ctx); err != nil {
			return err
		}
	}
	if !j.outlive(survivors, struck.At) {
		return nil
	}
	switch f.Kind {
	case "stop":
		j.goOn()
	case "cut":
		victim := j.of(f.Victim)
		if e, ok := victim.await(f.Victim, "failed", time.Now().Add(chaosPatience)); !ok {
			j.hung(f.Victim, "failed")
		} else if took := time.Duration(e.At - struck.At); took > f.bound() {
			j.out.slow = append(j.out.slow, fmt.Sprintf("rank %d, which was cut off, had its error after %v, %v more than the %v it may take", f.Victim, took, took-f.bound(), f.bound()))
		}
	}
	j.checkEnds()
	return nil
}

// outlive sees the survivors through the fault.
func (j *chaosJob) outlive(survivors []int, struck int64) bool {
	f := j.fault
	deadline := time.Now().Add(f.bound() + chaosPatience)
	if f.harmless() {
		unharmed := 0
		for _, r := range append(survivors, f.Victim) {
			if _, ok := j.of(r).await(r, "unharmed", deadline); ok {
				unharmed++
			} else if !f.kind().perhaps {
				j.hung(r, "unharmed")
				return false
			}
		}
		_, failed := j.of(survivors[0]).said(survivors[0], "failed")
		if unharmed == f.Ranks && !failed {
			j.out.unharmed = true
			return true
		}
		if unharmed == f.Ranks { // the world is; a group was not formed
			if !j.eachSays(survivors, "failed", deadline) {
				return false
			}
			j.checkErrors(survivors, struck)
			return true
		}
	}
	if !j.eachSays(survivors, "failed", deadline) {
		return false
	}
	j.checkErrors(survivors, struck)
	if !j.out.named || j.out.store {
		return true
	}
	if !j.eachSays(survivors, "formed", deadline) || !j.eachSays(survivors, "used", deadline) {
		return false
	}
	j.timeGroup(survivors)
	return true
}

// miss looks at what ranks say of one that never comes.
func (j *chaosJob) miss(survivors []int) error {
	if !j.eachSays(survivors, "failed", time.Now().Add(startPatience)) {
		return nil
	}
	j.out.named = true
	for _, r := range survivors {
		if e, _ := j.of(r).said(r, "failed"); e.Named != j.fault.Victim && !strings.Contains(e.Text, fmt.Sprintf("connect to rank %d,", j.fault.Victim)) {
			j.out.named = false
			j.wrong("rank %d does not miss rank %d: %s", r, j.fault.Victim, e.Text)
		}
	}
	j.checkEnds()
	return nil
}

// twice starts a second process of the victim's rank, which must be told.
func (j *chaosJob) twice(ctx context.Context) error {
	if err := j.start(ctx, j.fault.Victim); err != nil {
		return err
	}
	p := j.ps[len(j.ps)-1]
	if e, ok := p.await(j.fault.Victim, "failed", time.Now().Add(chaosPatience)); !ok || !strings.Contains(e.Text, fmt.Sprintf("joined as rank %d before", j.fault.Victim)) {
		j.wrong("a second rank %d is not told that there is one: %s%s", j.fault.Victim, e.Text, p.other.String())
	}
	return nil
}

// eachSays waits until all ranks have said something.
func (j *chaosJob) eachSays(ranks []int, what string, deadline time.Time) bool {
	for _, r := range ranks {
		if _, ok := j.of(r).await(r, what, deadline); !ok {
			j.hung(r, what)
			return false
		}
	}
	return true
}

// checkErrors looks at what the survivors got, and when.
func (j *chaosJob) checkErrors(survivors []int, struck int64) {
	f := j.fault
	j.out.named = true
	for _, r := range survivors {
		e, _ := j.of(r).said(r, "failed")
		took := time.Duration(e.At - struck)
		j.out.slowest = max(j.out.slowest, took)
		if bound := f.bound(); took > bound {
			j.out.slow = append(j.out.slow, fmt.Sprintf("rank %d had its error after %v, %v more than the %v it may take", r, took, took-bound, bound))
		}
		for _, what := range []string{"failed", "later"} {
			e, ok := j.of(r).said(r, what)
			if f.Kind == "spoilt" && strings.Contains(e.Text, "the connection to the store is lost") {
				j.out.store = true // who has lost it knows no more, nor do the others
				continue
			}
			if ok && (e.Named != f.Victim || !slices.Contains(strings.Split(f.kind().cause, " or "), e.Cause)) {
				j.out.named = false
				j.wrong("rank %d says (%s) that rank %d %s, want that rank %d %s: %s", r, what, e.Named, e.Cause, f.Victim, f.kind().cause, e.Text)
			}
		}
		if e.Site == "" && f.Kind != "full" && !j.out.store {
			j.wrong("rank %d does not say where it called: %s", r, e.Text)
		}
	}
}

// timeGroup takes the time that the survivors' group took.
func (j *chaosJob) timeGroup(survivors []int) {
	var begun, ended int64
	for _, r := range survivors {
		e, _ := j.of(r).said(r, "formed")
		begun, ended = max(begun, e.Begun), max(ended, e.At)
	}
	j.out.group = time.Duration(ended - begun)
	if bound := groupBound(); j.out.group > bound {
		j.out.slow = append(j.out.slow, fmt.Sprintf("the survivors' group took %v, %v more than the %v it may take", j.out.group, j.out.group-bound, bound))
	}
}

// goOn wakes a stopped victim, which hears that it has been given up.
func (j *chaosJob) goOn() {
	f := j.fault
	victim := j.of(f.Victim)
	_ = victim.cmd.Process.Signal(syscall.SIGCONT)
	if e, ok := victim.await(f.Victim, "failed", time.Now().Add(chaosPatience)); !ok {
		j.hung(f.Victim, "failed")
	} else if e.Named != f.Victim || e.Cause != "silent" {
		j.wrong("rank %d, which was stopped, does not hear that it was given up: %s", f.Victim, e.Text)
	}
}

// checkEnds waits for all processes and looks at what they held.
func (j *chaosJob) checkEnds() {
	f := j.fault
	for _, p := range j.ps {
		if p == nil {
			continue
		}
		dies := f.Kind == "kill" && p.rank == f.Victim
		select {
		case <-p.waited:
		case <-time.After(chaosPatience):
			j.hung(p.rank, "left")
			continue
		}
		e, left := p.said(0, "left")
		var exit *exec.ExitError
		switch {
		case dies && errors.As(p.err, &exit):
		case p.err != nil || !left:
			j.wrong("the process of rank %d ended with %v: %s", p.rank, p.err, p.other.String())
		}
		for _, what := range e.Leaks {
			j.out.leaks = append(j.out.leaks, fmt.Sprintf("the process of rank %d has left: %s", p.rank, what))
		}
		p.mu.Lock()
		for _, e := range p.events {
			if e.What == "wrong" {
				j.wrong("rank %d: %s", e.Rank, e.Text)
			}
		}
		p.mu.Unlock()
	}
}
