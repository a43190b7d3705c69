// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/train"
)

// psDir is where the servers of a run keep what they have while the run goes on. Checkpoints
// do not need it.
const psDir = "ps"

// Limits of the servers of a run.
const (
	psStartTime = time.Minute      // to say their address
	psQuick     = 10 * time.Second // a server that ends earlier may be one that cannot run
	psTries     = 5                // times in a row that it may
)

// runServers are the parameter servers of a run of `cohort train`, which this process starts
// and keeps.
type runServers struct {
	o    train.ServersOptions
	exe  string
	dir  string
	life context.Context
	wait sync.WaitGroup
}

// startRunServers returns the [train.StartServers] of a run in a directory. The servers keep
// their rows there, so that one that is killed comes back with them. What an earlier start of
// the run has left is removed: the run goes on from its checkpoint.
func startRunServers(out string) train.StartServers {
	return func(ctx context.Context, o train.ServersOptions) ([]string, func() error, error) {
		exe, err := os.Executable()
		if err != nil {
			return nil, nil, err
		}
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		r := &runServers{o: o, exe: exe, dir: filepath.Join(out, psDir), life: life}
		stop := func() error {
			end()
			r.wait.Wait()
			return os.RemoveAll(r.dir)
		}
		if err := os.RemoveAll(r.dir); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		addrs, errs := make([]string, o.Count), make([]error, o.Count)
		var begun sync.WaitGroup
		for i := range o.Count {
			begun.Add(1)
			told := sync.OnceFunc(begun.Done)
			r.wait.Go(func() {
				defer told()
				errs[i] = r.keep(i, func(addr string) {
					addrs[i] = addr
					told()
				})
			})
		}
		begun.Wait()
		for i, addr := range addrs {
			if addr == "" {
				return nil, nil, errors.Join(errs[i], stop())
			}
		}
		return addrs, stop, nil
	}
}

// keep runs a server until the run ends, again at the same address whenever the server ends.
func (r *runServers) keep(index int, begun func(addr string)) error {
	// On Linux the system ends the server together with the thread that has started it.
	runtime.LockOSThread()
	name := fmt.Sprintf("parameter server %d of %d", index, r.o.Count)
	listen := ""
	for quick := 1; ; quick++ {
		start := time.Now()
		err := r.serve(index, listen, func(addr string) {
			if listen == "" {
				listen = addr
				begun(addr)
			}
		})
		if r.life.Err() != nil {
			return nil
		}
		if listen == "" {
			return fmt.Errorf("%s did not start: %w", name, err)
		}
		if time.Since(start) > psQuick {
			quick = 1
		}
		if quick > psTries {
			r.o.Notice(fmt.Sprintf("%s has ended %d times, each time within %v: %v; it is not started again", name, quick, psQuick, err))
			return err
		}
		r.o.Notice(fmt.Sprintf("%s has ended: %v; it is started again with the rows that it had", name, err))
	}
}

// serve runs a server until it ends, and calls begun with its address.
func (r *runServers) serve(index int, listen string, begun func(addr string)) error {
	ctx, kill := context.WithCancelCause(r.life)
	defer kill(nil)
	if listen == "" {
		listen = net.JoinHostPort(r.o.Host, "0")
	}
	late := time.AfterFunc(psStartTime, func() { kill(fmt.Errorf("it did not say its address within %v", psStartTime)) })
	defer late.Stop()
	stdout := &firstLine{then: func(line string) {
		late.Stop()
		if words := strings.Fields(line); len(words) > 0 {
			begun(words[len(words)-1])
		}
	}}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.exe, "ps", "serve", "--index", strconv.Itoa(index), "--servers", strconv.Itoa(r.o.Count),
		"--listen", listen, "--dir", filepath.Join(r.dir, strconv.Itoa(index)))
	cmd.Env = append(envvar.OutsideJob(os.Environ()), string(envvar.Token)+"="+r.o.Token)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, &stderr, 5*time.Second
	endWithParent(cmd)
	err := cmd.Run()
	if cause := context.Cause(ctx); cause != nil && r.life.Err() == nil {
		return cause
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if text := strings.TrimPrefix(lines[len(lines)-1], "cohort: "); text != "" && err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// firstLine calls then with the first line that is written to it.
type firstLine struct {
	line []byte
	then func(line string)
	done bool
}

func (f *firstLine) Write(b []byte) (int, error) {
	if f.done {
		return len(b), nil
	}
	f.line = append(f.line, b...)
	if line, _, ended := bytes.Cut(f.line, []byte("\n")); ended {
		f.done = true
		f.then(string(line))
	}
	return len(b), nil
}
