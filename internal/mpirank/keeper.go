// SPDX-License-Identifier: Apache-2.0

// Package mpirank keeps a rank of an MPI apart from its launcher, so that a death can be named.
//
// MPICH's launcher, hydra, kills the ranks of a job within a millisecond when one of them has
// died, whatever its options say. The others then cannot say which rank it was. A [Keeper] is
// a process between hydra and a rank. What hydra sees of the rank is the keeper:
//
//   - The rank is in another process group, which hydra does not know and does not kill.
//   - If the rank ends badly, the keeper stays for its grace, with all that it has inherited
//     from hydra. Until then hydra does not know. Meanwhile the other ranks hear of the death
//     by their connections, and write their errors. The keeper writes a line too: an MPI may
//     abort a rank that reads the memory of a dead one.
//   - If the keeper itself is killed, as hydra does, a shell gives the rank the grace, and then
//     kills the rank and what it has started. So no rank outlives its job.
package mpirank

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Grace is how long the keeper of a rank that has ended badly stays, and how long a rank may
// outlive its keeper. Other ranks hear of a death within milliseconds. What is left is for
// machines that have much else to do.
const Grace = 2 * time.Second

// Keeper keeps a rank.
type Keeper struct {
	Command []string // the rank's program and its arguments
	Grace   time.Duration
}

// guardScript waits for the end of its input. $1 tenths of a second later it kills the process
// group that it leads, itself included.
const guardScript = `
trap '' INT TERM HUP QUIT USR1 USR2
echo
while read -r line; do :; done
i=0
while [ $i -lt "$1" ]; do
	sleep 0.1 || sleep 1
	i=$((i+1))
done
kill -KILL 0
`

// parentPeriod is how often a keeper looks whether its launcher still exists.
const parentPeriod = 500 * time.Millisecond

// passedOn are the signals that the rank gets when the keeper gets them.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGWINCH}

// Run runs the rank to its end, and returns how it has ended: by its exit code, or by a
// signal, which is 0 else. An error means that the rank has not started. The end of ctx counts
// as the end of the launcher.
func (k *Keeper) Run(ctx context.Context) (code int, by syscall.Signal, err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	guard, err := k.startGuard()
	if err != nil {
		return 0, 0, err
	}
	defer guard.stop()
	rank := exec.Command(k.Command[0], k.Command[1:]...)
	rank.Stdin, rank.Stdout, rank.Stderr = os.Stdin, os.Stdout, os.Stderr
	group := guard.cmd.Process.Pid
	rank.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group}
	if err := rank.Start(); err != nil {
		return 0, 0, fmt.Errorf("start the rank: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rank.Wait()
	}()
	launcher := os.Getppid()
	ticker := time.NewTicker(parentPeriod)
	defer ticker.Stop()
	abandoned := ctx.Done()
	told := false // that the job is to end
	for over := false; !over; {
		select {
		case s := <-signals:
			told = told || endsJob(s)
			_ = syscall.Kill(-group, s.(syscall.Signal))
		case <-ticker.C:
			if os.Getppid() != launcher {
				told = true
				_ = guard.input.Close()
			}
		case <-abandoned:
			abandoned, told = nil, true
			_ = guard.input.Close()
		case <-ended:
			over = true
		}
	}
	guard.stop()
	status := rank.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		by = status.Signal()
	} else {
		code = status.ExitStatus()
	}
	if (code != 0 || by != 0) && !told {
		if by != 0 {
			fmt.Fprintf(os.Stderr, "cohort: %s died: %v; the other ranks have %v to say so\n", name(rank.Process.Pid), by, k.Grace)
		}
		k.stay(ctx, signals, launcher)
	}
	return code, by, nil
}

// name names the rank as its group does.
func name(pid int) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	which := "a rank"
	if t, ok := envvar.MPITask(); ok {
		which = "rank " + strconv.Itoa(t.Rank)
	}
	return fmt.Sprintf("%s (host %s, pid %d)", which, host, pid)
}

// endsJob reports whether a signal asks a job to end.
func endsJob(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// stay waits for the grace, or until somebody wants the job to end.
func (k *Keeper) stay(ctx context.Context, signals chan os.Signal, launcher int) {
	limit := time.NewTimer(k.Grace)
	defer limit.Stop()
	ticker := time.NewTicker(parentPeriod)
	defer ticker.Stop()
	for {
		select {
		case s := <-signals:
			if endsJob(s) {
				return
			}
		case <-ticker.C:
			if os.Getppid() != launcher {
				return
			}
		case <-ctx.Done():
			return
		case <-limit.C:
			return
		}
	}
}

// guard is the shell that ends a rank whose keeper has been killed. It leads the process group
// of the rank.
type guard struct {
	cmd   *exec.Cmd
	input *os.File // the keeper alone has it, so it ends with the keeper
}

// startGuard starts the shell, and waits until signals to its group do not end it. Then the
// keeper may be killed at any time.
func (k *Keeper) startGuard() (*guard, error) {
	in, input, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard the rank: %w", err)
	}
	defer in.Close()
	cmd := exec.Command("/bin/sh", "-c", guardScript, "cohort-guard", strconv.Itoa(int(k.Grace/(100*time.Millisecond))))
	cmd.Dir, cmd.Env, cmd.Stdin = "/", []string{"PATH=/usr/bin:/bin"}, in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g := &guard{cmd, input}
	ready, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = ready.Read(make([]byte, 1))
	}
	if err != nil {
		g.stop()
		return nil, fmt.Errorf("guard the rank: %w", err)
	}
	return g, nil
}

// stop ends the guard of a rank that has ended.
func (g *guard) stop() {
	if g.cmd.Process != nil && g.cmd.ProcessState == nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	}
	_ = g.input.Close()
}

// Exit ends this process as the rank has ended: with its exit code, or by its signal. Of signals
// with which a program of Go prints its goroutines, it makes the exit code of a shell.
func Exit(code int, by syscall.Signal) {
	switch by {
	case 0:
		os.Exit(code)
	case syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP:
		signal.Reset(by)
		if err := syscall.Kill(os.Getpid(), by); err == nil {
			time.Sleep(time.Second) // it comes meanwhile
		}
	}
	os.Exit(128 + int(by))
}
