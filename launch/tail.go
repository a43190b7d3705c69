// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// tail keeps the last lines of a stream, and where a Go program has crashed, the first
// that it said of it: the stacks of its goroutines, which follow, may be any number
// of lines. The relay that fills it and the agent that reads it at the end are
// different goroutines.
type tail struct {
	mu    sync.Mutex
	lines []string
	size  int
	num   int // lines that there were
	// crash are the first lines of a crash, of which the first was line number at.
	crash []string
	at    int
	usage bool // a line explained how the program is called
}

// crashLines is how many lines of a crash are kept: the message, and the top of
// the stack that it is about.
const crashLines = 8

// isCrash reports whether a line is what the Go runtime begins with when it ends a program.
func isCrash(line []byte) bool {
	for _, begin := range []string{"panic: ", "fatal error: ", "unexpected fault address ", "runtime: out of memory"} {
		if bytes.HasPrefix(line, []byte(begin)) {
			return true
		}
	}
	// "SIGSEGV: segmentation violation"
	name, _, ok := bytes.Cut(line, []byte(": "))
	return ok && bytes.HasPrefix(name, []byte("SIG")) && unix.SignalNum(string(name)) != 0
}

func (t *tail) add(line []byte) {
	line = bytes.TrimRight(line, "\r\n")
	if len(line) > tailBytes/2 {
		line = line[:tailBytes/2]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.crash); n == 0 && isCrash(line) {
		t.crash, t.at = []string{string(line)}, t.num
	} else if n > 0 && n < crashLines {
		t.crash = append(t.crash, string(line))
	}
	t.usage = t.usage || isUsage(line)
	t.lines = append(t.lines, string(line))
	t.num++
	t.size += len(line)
	for len(t.lines) > tailLines || t.size > tailBytes {
		t.size -= len(t.lines[0])
		t.lines[0] = ""
		t.lines = t.lines[1:]
	}
}

// printedUsage reports whether the stream explained how the program is called, and not a crash.
func (t *tail) printedUsage() bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.usage && len(t.crash) == 0
}

func (t *tail) last() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	if gone := t.num - len(t.lines) - t.at; gone > 0 && len(t.crash) > 0 {
		out = append(out, t.crash[:min(gone, len(t.crash))]...)
		if more := gone - len(t.crash); more > 0 {
			out = append(out, fmt.Sprintf("… %d lines", more))
		}
	}
	return append(out, t.lines...)
}
