// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { roles["limits"] = roleLimits }

// roleLimits says what is wrong with a limit on its address space.
func roleLimits(string) int {
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 800 << 20, Max: unix.RLIM_INFINITY}); err != nil {
		say("%v", err)
		return 3
	}
	say("%v", CheckLimits())
	f := Failure{Tail: []string{"runtime/cgo: pthread_create failed: Resource temporarily unavailable"}}
	say("%s", f.addressSpace())
	f = Failure{Tail: []string{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."}}
	say("a GPU: %q", f.addressSpace())
	return 0
}

// TestLimits: what the system does not allow is told in one line that names the limit.
func TestLimits(t *testing.T) {
	p := startProcess(t, "limits")
	p.end(t)
	if s := p.out.String(); !strings.Contains(s, "address space (ulimit -v) is 800 MiB, and Go reserves 1400 MiB") || !strings.Contains(s, "it may have 800 MiB of address space (ulimit -v)") || !strings.Contains(s, `a GPU: ""`) {
		t.Errorf("%q", s)
	}
	p = &process{mark: newMark(t), Cmd: exec.Command("/bin/sh", "-c", `ulimit -n 40; exec "$0" -test.run=none`, os.Args[0])}
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":4}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=hello")
	p.Stdout, p.Stderr, p.WaitDelay = &p.out, &p.errs, time.Minute
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.end(t); code != 0 {
		t.Errorf("as many open files as it takes: code %d, %s", code, p.errs.String())
	}
	if err := CheckLimits(); err != nil {
		t.Errorf("here: %v", err)
	}
	if text := (&Failure{Tail: []string{"out of memory"}}).addressSpace(); text != "" {
		t.Errorf("here: %s", text)
	}
	for _, n := range []int{10, 20, 39} {
		p := &process{mark: newMark(t), Cmd: exec.Command("/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" -test.run=none`, n), os.Args[0])}
		p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":4}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=wait")
		p.Stdout, p.Stderr, p.WaitDelay = &p.out, &p.errs, time.Minute
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		code, _ := p.end(t)
		if s := p.errs.String(); code != 2 || s != fmt.Sprintf("4 ranks here need 40 open files, and this process may have %d (ulimit -n): raise the limit, or start fewer ranks\n", n) {
			t.Errorf("%d open files: code %d, %q", n, code, s)
		}
	}
}

// A temporary directory that cannot be written is named, and a disk that is full is told of
// once, however many files are on it.
func TestNoPlace(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	t.Setenv("TMPDIR", gone)
	err := Run(t.Context(), Config{Program: "true", NumRanks: 1})
	if ExitCode(err) != 2 || !strings.Contains(err.Error(), "the temporary directory "+gone+" cannot be written: name another one in TMPDIR") {
		t.Errorf("%v", err)
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", t.TempDir())
	var out, errs output
	cfg := self(t, 3, "burst:100000")
	cfg.Stdout, cfg.Stderr, cfg.Logs = &out, &errs, Logs{Dir: disk, Tee: RankStreams{AllRanks: Stdout | Stderr}}
	if err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if s := errs.String() + out.String(); strings.Count(s, "no space left") != 1 || !strings.Contains(s, disk) {
		t.Errorf("it is told %d times", strings.Count(s, "no space left"))
	}
}
