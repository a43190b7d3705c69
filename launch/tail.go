// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// tail keeps the last lines of a stream. If a Go program has crashed, it also keeps the
// first lines of the crash, because any number of lines with the stacks of goroutines may
// follow. A relay fills the tail, and the agent reads it at the end, on another goroutine.
type tail struct {
	mu    sync.Mutex
	lines []string
	size  int
	num   int // number of lines so far
	// crash are the first lines of a crash; the first of them was line number at.
	crash []string
	at    int
	usage bool // the program has printed its usage
}

// A failure report shows at most this much of the end of a rank's standard error.
const (
	tailLines = 20
	tailBytes = 8 << 10
)

// crashLines is how many lines of a crash are kept: the message, and the top of the first
// stack.
const crashLines = 8

// isCrash reports whether a line is the first one of a crash of the Go runtime.
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

// printedUsage reports whether the program has printed its usage, and has not crashed.
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
