// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal makes a pseudo-terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skip(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	return master, slave
}

// startOn starts a program on a terminal of its own, whose session it leads, and returns
// its screen and its keys.
func startOn(t *testing.T, p *process) (screen *output, keys *os.File) {
	t.Helper()
	master, slave := openTerminal(t)
	screen = &output{}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			_, _ = screen.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	p.Stdin, p.Stdout, p.Stderr = slave, slave, slave
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	slave.Close()
	return screen, master
}

// An agent on a terminal that passes rank 0 through: rank 0 sees the terminal,
// the others a pipe, and a Ctrl-C reaches each once, in order.
func TestPassRank0OnTerminal(t *testing.T) {
	p := &process{mark: newMark(t)}
	p.Cmd = exec.Command(os.Args[0], "-test.run=none")
	p.Env = append(os.Environ(), testRole+`=agent:{"NumRanks":2,"PassRank0":true}`, testMark+"="+p.mark, "LAUNCH_TEST_WORKER=tty")
	screen, keys := startOn(t, p)
	screen.await(t, 2, "terminals")
	if _, err := keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	code, _ := p.end(t)
	screen.await(t, 1, "stopped by SIGINT")
	s := strings.ReplaceAll(screen.String(), "\r\n", "\n")
	for _, want := range []string{"rank 0 terminals true true\n", "[rank1] rank 1 terminals false false\n", "saved after interrupt\n"} {
		if !strings.Contains(s, want) {
			t.Errorf("the screen lacks %q:\n%s", want, s)
		}
	}
	if strings.Contains(s, "[rank0]") {
		t.Errorf("rank 0 has a prefix:\n%s", s)
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}
