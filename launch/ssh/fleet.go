// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how hosts are reached.
type Options struct {
	Hosts []Host
	// SSH is the command of the system's ssh, with options of its own; default ssh.
	SSH []string
	// Cohort is the path of Cohort on the hosts, or its name in the PATH there; default
	// cohort.
	Cohort string
	// Copy copies this program, and Files, to hosts that do not have them.
	Copy  bool
	Files []string
	// Version is that of this program. Hosts with another one are refused.
	Version string
	// Patience is how long a host may take until it greets; default 60 s.
	Patience time.Duration
	// Stdout and Stderr get what the commands of the hosts print.
	Stdout, Stderr io.Writer
}

// dials is how many hosts are reached at the same time.
const dials = 64

// Fleet are hosts that have greeted.
type Fleet struct {
	Connections []*Connection
	// Copies are the paths of this program and of Options.Files on each host, if they were
	// copied.
	Copies [][]string
	opts   Options
}

// HostErrors are the errors of several hosts.
type HostErrors struct {
	All []*HostError
	Of  int // hosts of the list
}

func (e *HostErrors) Error() string {
	const most = 4
	var texts []string
	for i, one := range e.All {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(e.All)-most))
			break
		}
		texts = append(texts, one.Error())
	}
	if len(e.All) == 1 {
		return texts[0]
	}
	return fmt.Sprintf("%d of %d hosts: %s", len(e.All), e.Of, strings.Join(texts, "; "))
}

// Connect reaches all hosts and compares them. Nothing runs on any of them if it fails.
func Connect(ctx context.Context, o Options) (*Fleet, error) {
	if len(o.SSH) == 0 {
		o.SSH = []string{"ssh"}
	}
	o.Cohort, o.Patience = cmp.Or(o.Cohort, "cohort"), cmp.Or(o.Patience, time.Minute)
	local, err := o.localFiles()
	if err != nil {
		return nil, err
	}
	out := &lineWriter{w: o.Stderr}
	o.Stderr = writerOf(out.write)
	f := &Fleet{Connections: make([]*Connection, len(o.Hosts)), Copies: make([][]string, len(o.Hosts)), opts: o}
	errs := make([]error, len(o.Hosts))
	slots := make(chan struct{}, dials)
	var all sync.WaitGroup
	for i, h := range o.Hosts {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f.Connections[i], f.Copies[i], errs[i] = f.reach(ctx, h, local)
		})
	}
	all.Wait()
	bad := &HostErrors{Of: len(o.Hosts)}
	seen := map[string]string{}
	for i, h := range o.Hosts {
		if errs[i] == nil {
			errs[i] = f.accept(f.Connections[i], local, seen)
		}
		if errs[i] != nil {
			bad.All = append(bad.All, &HostError{Host: h.Name, Refused: true, Err: errs[i]})
		}
	}
	if len(bad.All) > 0 {
		f.Close()
		return nil, bad
	}
	return f, nil
}

// reach copies what is to be copied, and connects.
func (f *Fleet) reach(ctx context.Context, h Host, local []localFile) (c *Connection, copies []string, err error) {
	command := "exec " + Quote(f.opts.Cohort) + " host-agent"
	if f.opts.Copy {
		if copies, err = f.copyTo(ctx, h, local); err != nil {
			return nil, nil, err
		}
		command = "exec " + Quote(copies[0]) + " host-agent"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.opts.Patience, fmt.Errorf("it has not greeted within %v", f.opts.Patience))
	defer cancel()
	c, err = dial(ctx, &f.opts, h, command)
	return c, copies, err
}

// accept compares a host with this one and with those before it.
func (f *Fleet) accept(c *Connection, local []localFile, seen map[string]string) error {
	h := &c.Hello
	switch {
	case h.Err != "":
		return fmt.Errorf("%s", h.Err)
	case h.Protocol != protocol || h.Version != f.opts.Version:
		return fmt.Errorf("it has another version, %s, and this host has %s: install the same on all hosts, or give --copy", h.Version, f.opts.Version)
	case f.opts.Copy && h.Sum != local[0].sum:
		return fmt.Errorf("the copy of this program there is damaged: remove ~/.cache/cohort/bin there and start again")
	}
	if first, ok := seen[h.Machine]; ok {
		return fmt.Errorf("it is the same machine as %s (%s): name each machine once, with all its ranks, as in %s:4", first, h.Host, first)
	}
	seen[h.Machine] = c.Host.Name
	return nil
}

// Addr returns the address at which hosts reach a host: the one at which ssh has reached it.
func (c *Connection) Addr() (string, error) {
	ip := net.ParseIP(strings.Split(c.Hello.Addr, "%")[0])
	switch {
	case ip == nil:
		return "", &HostError{Host: c.Host.Name, Refused: true, Err: fmt.Errorf("sshd there does not say at which address it was reached (SSH_CONNECTION): give --master-addr ADDRESS of the first host, or --rdzv-endpoint ADDRESS:PORT for a job of changing size")}
	case ip.IsLoopback():
		return "", &HostError{Host: c.Host.Name, Refused: true, Err: fmt.Errorf("ssh reaches it at %s, where the other hosts do not: give its real name or address, or --master-addr ADDRESS (--rdzv-endpoint ADDRESS:PORT for a job of changing size)", ip)}
	}
	return c.Hello.Addr, nil
}

// Close ends all connections of a fleet that has run nothing.
func (f *Fleet) Close() {
	for _, c := range f.Connections {
		if c != nil {
			c.close()
		}
	}
	over := time.NewTimer(5 * time.Second)
	defer over.Stop()
	for _, c := range f.Connections {
		if c == nil {
			continue
		}
		select {
		case <-c.ended:
		case <-over.C:
			c.kill()
			<-c.ended
			over.Reset(0)
		}
		c.pipe.Close()
	}
}

// Terms say when the commands of all hosts end.
type Terms struct {
	// Least is the number of hosts that the job needs. If fewer are left, the others end.
	Least int
	// Grace is the time that a command has to end after a signal.
	Grace time.Duration
	// Signals go to all commands.
	Signals <-chan os.Signal
}

// Times of an end that goes wrong.
const (
	lonelyGrace = 20 * time.Second // the others may end by themselves, with errors of their own
	slowGrace   = 10 * time.Second // beyond Terms.Grace
)

// Result is how the command of a host has ended.
type Result struct {
	Host string
	Code int
	// Lost is why the connection to the host ended before the command; nil if it did not.
	Lost error
}

// OK reports whether the command has ended with code 0.
func (r *Result) OK() bool { return r.Code == 0 && r.Lost == nil }

// Run runs a command on each host, until all have ended.
func (f *Fleet) Run(ctx context.Context, orders []Order, terms Terms) []Result {
	type end struct {
		i int
		r Result
	}
	ended := make(chan end)
	out := &lineWriter{w: f.opts.Stdout}
	for i, c := range f.Connections {
		c.errs.release()
		c.sending.Lock() // the order comes before what tell sends
		go func() { ended <- end{i, c.follow(orders[i], out)} }()
	}
	results := make([]Result, len(f.Connections))
	running := map[int]bool{}
	for i := range f.Connections {
		running[i] = true
	}
	tell := func(m control) {
		for i := range running {
			_ = f.Connections[i].send(m) // who cannot be told ends by itself
		}
	}
	// The steps of an end, each after the time of the one before.
	var steps []func()
	next := time.NewTimer(time.Hour)
	next.Stop()
	defer next.Stop()
	stop := func() {
		for i := range running {
			f.Connections[i].close()
		}
		steps = []func(){func() {
			for i := range running {
				f.Connections[i].kill()
			}
		}}
		next.Reset(slowGrace)
	}
	alive := time.NewTicker(beat)
	defer alive.Stop()
	good, signalled, done := 0, false, ctx.Done()
	for len(running) > 0 {
		select {
		case e := <-ended:
			delete(running, e.i)
			results[e.i] = e.r
			if e.r.OK() {
				good++
			}
			if good+len(running) < terms.Least && steps == nil && len(running) > 0 {
				steps = []func(){func() { tell(control{Signal: "SIGTERM"}); next.Reset(terms.Grace + slowGrace) }, stop}
				next.Reset(lonelyGrace)
			}
		case s := <-terms.Signals:
			tell(control{Signal: unix.SignalName(s.(syscall.Signal))})
			if s != syscall.SIGUSR1 && !signalled {
				signalled, steps = true, []func(){stop}
				next.Reset(terms.Grace + slowGrace)
			}
		case <-done:
			done = nil
			tell(control{Signal: "SIGTERM"})
			steps = []func(){stop}
			next.Reset(terms.Grace + slowGrace)
		case <-next.C:
			step := steps[0]
			steps = steps[1:]
			step()
		case <-alive.C:
			tell(control{})
		}
	}
	return results
}

// writerOf makes a writer of a function.
type writerOf func([]byte)

func (w writerOf) Write(b []byte) (int, error) { w(b); return len(b), nil }
