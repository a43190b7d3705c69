// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

func init() { roles["steps"] = roleSteps }

// roleSteps reduces until it is asked to end. Rank 0 takes the echo of the terminal away,
// and rank 1 has a child in a session of its own.
func roleSteps(string) int {
	if rank() == "0" {
		if modes, err := unix.IoctlGetTermios(0, unix.TCGETS); err == nil {
			modes.Lflag &^= unix.ECHO
			if err := unix.IoctlSetTermios(0, unix.TCSETSW, modes); err != nil {
				say("%v", err)
			}
		}
	} else {
		cmd := exec.Command("/bin/sh", "-c", "sleep 60; :")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			say("%v", err)
			return 3
		}
		say("child %d", cmd.Process.Pid)
	}
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(ctx context.Context, g *dist.Group) error {
		say("ready %d", os.Getpid())
		for {
			x := tensor.Zeros(8)
			if ctx.Err() != nil {
				x = tensor.Full(1, 8)
			}
			if err := g.AllReduce(context.WithoutCancel(ctx), x, dist.Max); err != nil || x.Float32s()[0] > 0 {
				return err
			}
		}
	})))
}

// echoes reports whether a terminal shows what is typed.
func echoes(t *testing.T, f *os.File) bool {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return modes.Lflag&unix.ECHO != 0
}

// TestJobControl: in a shell, Ctrl-Z stops the launcher and all that it has started, fg and
// bg continue them, and the terminal is the shell's or the job's as it was. The ranks do not
// take each other for silent, however long they were stopped.
func TestJobControl(t *testing.T) {
	const limit = time.Second // a rank of this host that wants a processor is not silent
	p := &process{mark: newMark(t), Cmd: exec.Command("/bin/sh", "-i")}
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":2}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=steps",
		envvar.Silence.Assign(limit.String()), "PS1=prompt> ", "ENV=", "HISTFILE=")
	screen, keys := startOn(t, p)
	press := func(text string) {
		t.Helper()
		if _, err := keys.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	screen.await(t, 1, "prompt>")
	press("'" + os.Args[0] + "' -test.run=none\n")
	screen.await(t, 2, "ready ")
	screen.await(t, 1, "child ")
	daemon := screen.numbers("child")
	pids := append(screen.numbers("ready"), daemon...)
	pids = append(pids, children(daemon[0])...)
	launcher, err := strconv.Atoi(string(statFields(pids[0])[1]))
	if err != nil {
		t.Fatal(err)
	}
	are := func(stopped, echo bool) {
		t.Helper()
		eventually(t, func() string {
			for _, pid := range append([]int{launcher}, pids...) {
				if isStopped(pid) != stopped {
					return fmt.Sprintf("process %d is stopped: %v, of launcher %d and %v\n%s", pid, !stopped, launcher, pids, screen)
				}
			}
			if echoes(t, keys) != echo {
				return fmt.Sprintf("the terminal echoes: %v\n%s", !echo, screen)
			}
			return ""
		})
	}
	are(false, false)
	press("\x1a")
	are(true, true)
	time.Sleep(2 * limit) // the point: longer than ranks may be silent
	press("fg\n")
	are(false, false)
	press("\x1a")
	are(true, true)
	press("bg\n")
	are(false, true)
	press("fg\n")
	are(false, false)
	press("\x03")
	screen.await(t, 1, "stopped by SIGINT")
	eventually(t, func() string {
		if !echoes(t, keys) {
			return "the terminal does not echo any more"
		}
		return ""
	})
	if s := screen.String(); strings.Contains(s, "silent") || strings.Contains(s, "failed") {
		t.Errorf("the job did not go on:\n%s", s)
	}
	press("exit\n")
	p.end(t)
}

// A rank that somebody else has stopped stays so; and what nobody could continue is not
// stopped: the launcher leads the session of its terminal.
func TestSuspendLeavesOthers(t *testing.T) {
	p := &process{mark: newMark(t), Cmd: exec.Command(os.Args[0], "-test.run=none")}
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":2}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=wait")
	screen, keys := startOn(t, p)
	screen.await(t, 2, "ready ")
	pids := screen.numbers("ready")
	if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if !isStopped(pids[0]) {
			return "a rank is not stopped yet"
		}
		return ""
	})
	if _, err := keys.WriteString("\x1a"); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.end(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
	screen.await(t, 1, "stopped by SIGINT")
	if s := screen.String(); strings.Count(s, "had been stopped (SIGSTOP)") != 1 {
		t.Errorf("one rank had been stopped:\n%s", s)
	}
}

// A job of several machines is not stopped: it says so, and goes on.
func TestSuspendOfSeveralMachines(t *testing.T) {
	p := startProcess(t, `agent:{"NumRanks":1,"Joined":true}`, "LAUNCH_TEST_WORKER=wait")
	p.out.await(t, 1, "ready ")
	for range 2 {
		if err := p.Process.Signal(syscall.SIGTSTP); err != nil {
			t.Fatal(err)
		}
		p.errs.await(t, 1, "a job of several machines is not stopped by SIGTSTP")
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.end(t); code != 1 || strings.Count(p.errs.String(), "is not stopped by") != 1 {
		t.Errorf("exit code %d\n%s", code, p.errs.String())
	}
}
