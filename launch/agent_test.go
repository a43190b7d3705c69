// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Tests in which the agent is a process of its own, and has things done to it.

func TestAgentSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signalName(sig), func(t *testing.T) {
			if signal.Ignored(sig) {
				t.Skip("this process was told to ignore it, as by nohup, and its children are too")
			}
			a := startAgent(t, Config{NumRanks: 2}, "wait")
			a.out.await(t, 2, "ready")
			_ = a.Process.Signal(sig)
			if code, took := a.end(t); code != 1 || took > soon {
				t.Errorf("exit code %d after %v", code, took)
			}
			for _, want := range []string{"stopped by " + signalName(sig), "stopped: rank 0", "was killed by " + signalName(sig)} {
				if !strings.Contains(a.errs.String(), want) {
					t.Errorf("the report lacks %q:\n%s", want, a.errs.String())
				}
			}
		})
	}
}

// TestAgentOtherSignals: a signal that is chosen goes to the ranks, whose context knows it.
func TestAgentOtherSignals(t *testing.T) {
	a := startProcess(t, fmt.Sprintf(`agent:{"NumRanks":2,"Signals":[%d]}`, syscall.SIGUSR1), "LAUNCH_TEST_WORKER=reduce:0+polite", "TMPDIR="+t.TempDir())
	a.out.await(t, 2, "ready")
	_ = a.Process.Signal(syscall.SIGUSR1)
	if code, took := a.end(t); code != 1 || took > soon {
		t.Errorf("exit code %d after %v", code, took)
	}
	for _, want := range []string{"stopped by SIGUSR1", "rank 0 got SIGUSR1"} {
		if !strings.Contains(a.errs.String(), want) {
			t.Errorf("no %q in\n%s", want, a.errs.String())
		}
	}
}

// A program that ignores signals ends at the second SIGINT, children and all.
func TestAgentSecondInterrupt(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2, Exclusive: true}, "deaf")
	a.out.await(t, 2, "ready")
	_ = a.Process.Signal(syscall.SIGTERM)
	a.out.await(t, 2, "ignored SIGTERM")
	_ = a.Process.Signal(syscall.SIGINT)
	if code, took := a.end(t); code != 1 || took > soon {
		t.Errorf("exit code %d after %v", code, took)
	}
	if !strings.Contains(a.errs.String(), "SIGKILL") {
		t.Errorf("report:\n%s", a.errs.String())
	}
}

// A program that ignores SIGTERM is killed when the grace period is over.
func TestAgentGrace(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2, Grace: 300 * time.Millisecond}, "deaf")
	a.out.await(t, 2, "ready")
	_ = a.Process.Signal(syscall.SIGTERM)
	code, took := a.end(t)
	if code != 1 || took < 300*time.Millisecond || took > soon {
		t.Errorf("exit code %d after %v", code, took)
	}
}

// A stopped worker is continued, so that it can end.
func TestAgentStoppedWorker(t *testing.T) {
	a := startAgent(t, Config{NumRanks: 2}, "wait")
	a.out.await(t, 2, "ready")
	_ = syscall.Kill(a.out.numbers("ready")[0], syscall.SIGSTOP)
	_ = a.Process.Signal(syscall.SIGTERM)
	if code, took := a.end(t); code != 1 || took > soon {
		t.Errorf("exit code %d after %v", code, took)
	}
}

// The reader of the output goes away (| head): the ranks end by SIGPIPE or an
// error of their own, and nothing hangs.
func TestAgentOutputClosed(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{mark: newMark(t)}
	p.Cmd = exec.Command(os.Args[0], "-test.run=none")
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":2}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=burst:20000000")
	p.Stdout, p.Stderr = w, &p.errs
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	buf := make([]byte, 1000)
	if _, err := r.Read(buf); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if code, took := p.end(t); code != 1 || took > soon {
		t.Errorf("exit code %d after %v\n%s", code, took, p.errs.String())
	}
	if !strings.Contains(p.errs.String(), "SIGPIPE") {
		t.Errorf("report:\n%s", p.errs.String())
	}
}

func TestNoTemporaryFilesLeft(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	tmp := t.TempDir()
	src := filepath.Join(t.TempDir(), "prog")
	writeFiles(t, src, map[string]string{
		"go.mod":  "module example.com/prog\n\ngo 1.26\n",
		"main.go": "package main\n\nimport (\n\t\"os\"\n\t\"time\"\n)\n\nfunc main() {\n\tos.Stdout.WriteString(\"ready\\n\")\n\ttime.Sleep(time.Minute)\n}\n",
	})
	p := &process{mark: newMark(t)}
	p.Cmd = exec.Command(os.Args[0], "-test.run=none")
	p.Env = append(os.Environ(), testRole+"=build:"+src, testMark+"="+p.mark, "TMPDIR="+tmp, "PATH="+filepath.Dir(goTool)+":/usr/bin:/bin")
	p.Stdout, p.Stderr = &p.out, &p.errs
	p.WaitDelay = time.Minute
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute) // a cold build cache
	for strings.Count(p.out.String(), "ready") < 2 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if files, _ := filepath.Glob(tmp + "/cohort-run-*/prog"); len(files) != 1 {
		t.Errorf("built files while it runs: %v\n%s", files, p.errs.String())
	}
	_ = p.Process.Kill()
	p.end(t)
	eventually(t, func() string {
		if files, _ := filepath.Glob(tmp + "/cohort-run-*"); len(files) > 0 {
			return fmt.Sprintf("left: %v", files)
		}
		return ""
	})
}

// TestKilledAgentFiles: the directory of error files goes with an agent that is killed.
func TestKilledAgentFiles(t *testing.T) {
	tmp := t.TempDir()
	a := startProcess(t, `agent:{"NumRanks":2}`, "LAUNCH_TEST_WORKER=wait", "TMPDIR="+tmp)
	a.out.await(t, 2, "ready")
	pattern := filepath.Join(tmp, "cohort-run-*", "none_*", "attempt_0", "*")
	if dirs, _ := filepath.Glob(pattern); len(dirs) != 2 {
		t.Errorf("%s has %v", pattern, dirs)
	}
	_ = a.Process.Kill()
	a.end(t)
	waitGone(t, a.mark)
	eventually(t, func() string {
		if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
			return fmt.Sprintf("left: %v", left)
		}
		return ""
	})
}

// TestKilledBuild: neither a build nor what it wrote stays, whatever ends the agent.
func TestKilledBuild(t *testing.T) {
	src, bin := t.TempDir(), t.TempDir()
	writeFiles(t, src, map[string]string{"main.go": "package main\n"})
	// A go command that has begun to write and takes its time. What it starts in a
	// session of its own is found by the job in its environment alone, as a build
	// is of which the guard has not heard yet.
	script := "#!/bin/sh\n[ $DAEMON ] && setsid sleep 61 &\nd=${GOTMPDIR:-$TMPDIR}/go-build1\nmkdir $d && : >$d/main.a\nsleep 61\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		tmp := t.TempDir()
		daemon := "DAEMON="
		if sig == syscall.SIGKILL {
			daemon += "1"
		}
		p := startProcess(t, "build:"+src, "TMPDIR="+tmp, "GOTMPDIR=", "PATH="+bin+":/usr/bin:/bin", daemon)
		find := func(pattern string) []string {
			files, _ := filepath.Glob(filepath.Join(tmp, pattern))
			return files
		}
		eventually(t, func() string {
			if len(find("go-build1/main.a"))+len(find("*/go-build1/main.a")) == 0 {
				return "the build has not begun: " + p.errs.String()
			}
			return ""
		})
		_ = p.Process.Signal(sig)
		p.end(t)
		waitGone(t, p.mark)
		eventually(t, func() string {
			if left := find("*"); len(left) > 0 {
				return fmt.Sprintf("%v leaves %v", sig, left)
			}
			return ""
		})
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}
