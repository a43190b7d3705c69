// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/doctor"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/launch/ssh"
)

// examine examines several hosts.
func (f *doctorFlags) examine(cmd *cobra.Command) error {
	if f.hosts != "" && f.hostFile != "" {
		return usageError{errors.New("doctor: --hosts and --hostfile both name the hosts: give one of them")}
	}
	hosts, err := ssh.ParseHosts(f.hosts)
	if f.hostFile != "" {
		hosts, err = ssh.ReadHostFile(f.hostFile)
	}
	if err != nil {
		return usageError{fmt.Errorf("doctor: %w", err)}
	}
	if len(hosts) < 2 {
		return usageError{fmt.Errorf("doctor: --hosts names one host: run cohort doctor there, or name at least two")}
	}
	remote := f.remote
	if remote == "" {
		if remote, err = os.Executable(); err != nil {
			return usageError{fmt.Errorf("doctor: where this program lies is not known (%w): say it by --remote-cohort", err)}
		}
	}
	if strings.ContainsAny(f.via, `'"\`) {
		return usageError{fmt.Errorf("doctor: --via %s: the words of the command are parted at spaces, and quotes are not read: write a script, and name that", f.via)}
	}
	p := doctor.Plan{Options: f.o, Shared: f.o.Dir != "", Version: version(debug.ReadBuildInfo())}
	for _, h := range hosts {
		// Names of ssh may have a user.
		p.Hosts = append(p.Hosts, h.Name[strings.LastIndexByte(h.Name, '@')+1:])
		ranks := cmp.Or(h.Slots, f.o.Ranks)
		p.Ranks = append(p.Ranks, ranks)
		p.Options.World += ranks
	}
	if viaSSH(f.via) {
		remote = ssh.Quote(remote)
		p.Alias = func(ctx context.Context, host string) bool {
			ctx, cancel := context.WithTimeout(ctx, aliasFor)
			defer cancel()
			_, err := net.DefaultResolver.LookupHost(ctx, host)
			return err != nil
		}
	}
	p.Open = func(ctx context.Context, host string) (doctor.Pipe, error) {
		for _, h := range hosts {
			if h.Name == host || strings.HasSuffix(h.Name, "@"+host) {
				return openProbe(ctx, f.via, h.Name, remote)
			}
		}
		return nil, fmt.Errorf("no host %q", host)
	}
	s, err := doctor.Examine(cmd.Context(), p)
	if err != nil {
		return usageError{err}
	}
	found := f.told(doctor.JudgeHosts(s))
	if f.asJSON {
		return f.printJSON(cmd, found, struct {
			Findings []doctor.Finding `json:"findings"`
			*doctor.Survey
		}{found, s})
	}
	return f.print(cmd, found, nil, fmt.Sprintf("%d hosts", len(hosts)))
}

// probe is a process on a host, or the ssh that has started it.
type probe struct {
	io.Reader
	io.Writer
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout io.Reader
	said   *lastWords
	once   sync.Once
	err    error
}

// aliasFor is how long this host may look for an address of a name that ssh knows.
const aliasFor = 5 * time.Second

// viaSSH reports whether a shell on the host reads the command.
func viaSSH(via string) bool {
	words := strings.Fields(via)
	return len(words) == 0 || filepath.Base(words[0]) == "ssh"
}

// openProbe starts the process that answers for a host.
func openProbe(_ context.Context, via, host, remote string) (doctor.Pipe, error) {
	if via == "" {
		via = "ssh -o ConnectTimeout=10 -o ServerAliveInterval=15"
	}
	words := strings.Fields(via)
	if viaSSH(via) { // it never asks
		words = slices.Insert(words, 1, "-T", "-o", "BatchMode=yes")
	}
	named := false
	for i, w := range words {
		if strings.Contains(w, "{host}") {
			words[i], named = strings.ReplaceAll(w, "{host}", host), true
		}
	}
	if !named {
		words = append(words, host)
	}
	words = append(words, remote, "doctor", "--probe")
	// It has no end of its own: Close ends it.
	p := &probe{cmd: exec.Command(words[0], words[1:]...), said: &lastWords{}}
	p.cmd.Stderr, p.cmd.Env = p.said, envvar.WithoutToken() // ssh may be told to send variables
	p.cmd.WaitDelay = time.Second
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.Reader, p.Writer, p.stdin, p.stdout = out, in, in, out
	return p, nil
}

// Close ends the process, and returns its last words if it has failed.
func (p *probe) Close() error {
	p.once.Do(func() {
		p.stdin.Close()
		// It ends when its input does. If it does not, it is ended.
		end := time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() })
		defer end.Stop()
		_, _ = io.Copy(io.Discard, p.stdout)
		if err := p.cmd.Wait(); err != nil {
			p.err = err
			if said := p.said.text(); said != "" {
				p.err = fmt.Errorf("%s (%w)", said, err)
			}
		}
	})
	return p.err
}

// lastWords keeps the end of what a process says on its standard error.
type lastWords struct {
	mu sync.Mutex
	b  []byte
}

func (l *lastWords) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b...)
	const most = 4096
	if len(l.b) > most {
		l.b = bytes.Clone(l.b[len(l.b)-most:])
	}
	return len(b), nil
}

func (l *lastWords) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(l.b)), "\n")
	return visible.Text(strings.TrimSpace(lines[len(lines)-1]))
}
