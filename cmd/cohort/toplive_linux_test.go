// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/monitor/history"
)

// screen is a terminal of a test, and what was written to it.
type screen struct {
	t             *testing.T
	master, slave *os.File
	mu            sync.Mutex
	text          strings.Builder
}

func openScreen(t *testing.T) *screen {
	t.Helper()
	s := &screen{t: t}
	var err error
	if s.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { s.master.Close() })
	if err := unix.IoctlSetPointerInt(int(s.master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skip(err)
	}
	if s.slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Skip(err)
	}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := s.master.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil { // all have closed it
				return
			}
		}
	}()
	return s
}

func (s *screen) resize(columns, rows uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.text.String(), "\r\r\n", "\r\n") // a terminal makes \r\n of \n
}

// picture waits for a whole picture of which is true, and returns its lines.
func (s *screen) picture(what string, is func(lines []string) bool) []string {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		frames := strings.Split(s.all(), "\x1b[H")
		for _, f := range frames[1:] {
			f, whole := strings.CutSuffix(f, "\x1b[K\x1b[J")
			if lines := strings.Split(f, "\x1b[K\r\n"); whole && is(lines) {
				return lines
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("no picture %s:\n%q", what, s.all())
		}
	}
}

// TestTopLive: on a terminal top draws on the other screen, shows what is new, fits the terminal when it changes
// its size, and gives the screen back, whatever ends it.
func TestTopLive(t *testing.T) {
	dir := t.TempDir()
	w, _, err := history.Create(dir, history.Run{Time: history.At(time.Now()), Task: "lm", Model: strings.Repeat("日本", 60), Ranks: 2, Steps: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(time.Minute)
	step := 0
	do := func() {
		step++
		w.Step(history.Step{Step: step, Time: history.At(time.Now()), Loss: history.Number(5 - float64(step)/10), Size: 1, Seconds: 0.1})
	}
	do()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		s := openScreen(t)
		s.resize(80, 24)
		top := startWith(t, nil, s.slave, "top", dir)
		s.slave.Close()
		says := func(text string, columns, rows int) func([]string) bool {
			return func(lines []string) bool {
				for _, l := range lines {
					if utf8.RuneCountInString(l) > columns || len(lines) > rows {
						return false
					}
				}
				return strings.Contains(strings.Join(lines, "\n"), text)
			}
		}
		s.picture("of 80 columns", says(fmt.Sprintf("step %d of 100", step), 80, 24))
		do()
		s.picture("of the next step", says(fmt.Sprintf("step %d of 100", step), 80, 24))
		for _, size := range [][2]uint16{{40, 8}, {20, 3}, {5, 1}} {
			s.resize(size[0], size[1])
			if err := top.cmd.Process.Signal(syscall.SIGWINCH); err != nil {
				t.Fatal(err)
			}
			s.picture(fmt.Sprintf("of %v", size), says("", max(20, int(size[0])), int(size[1]))) // what is wider is cut off by the terminal
		}
		if err := top.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := top.wait(t); code != 0 {
			t.Errorf("after %v top ends with %d", sig, code)
		}
		for end := time.Now().Add(time.Minute); !strings.HasSuffix(s.all(), "\x1b[?7h\x1b[?25h\x1b[?1049l"); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after %v the screen is not given back: %q", sig, s.all())
			}
		}
		if all := s.all(); !strings.HasPrefix(all, "\x1b[?1049h") || strings.Count(all, "\x1b[?1049h") != 1 {
			t.Errorf("the other screen was not chosen once: %q", all[:min(len(all), 60)])
		}
	}
}
