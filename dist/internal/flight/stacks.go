// SPDX-License-Identifier: Apache-2.0

package flight

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
)

const (
	// maxCallers is how often it is looked which goroutine makes a call.
	maxCallers = 16
	// MaxStack bounds the text of a stack.
	MaxStack = 3 << 10
	// maxStacks is up to what size those of all goroutines are looked through.
	maxStacks = 4 << 20
	// firstStacks is the size for which the first look has room.
	firstStacks = 64 << 10
)

// glance takes the stacks of all goroutines, which makes them all stand still. The ranks of
// one process ask at the same time when their group fails, and share a glance.
type glance struct {
	mu   sync.Mutex
	next *glimpse // that has not begun; nil if nobody waits for one

	looking sync.Mutex // held by who looks
	room    int        // of the last look
}

// glimpse is a result of a glance.
type glimpse struct {
	once   sync.Once
	stacks []string
}

// take returns stacks that were looked at after the call began.
func (g *glance) take() []string {
	g.mu.Lock()
	if g.next == nil {
		g.next = &glimpse{}
	}
	mine := g.next
	g.mu.Unlock()
	mine.once.Do(func() {
		g.looking.Lock()
		defer g.looking.Unlock()
		g.mu.Lock()
		g.next = nil // who comes from now on waits for the look after this one
		g.mu.Unlock()
		mine.stacks, g.room = stacks(max(g.room, firstStacks))
	})
	return mine.stacks
}

// everybody is the glance of all recorders of the process.
var everybody glance

// Where returns where the program of this rank is now, whatever it has called last: the
// line, as of a call site, and the stack of the goroutine that makes its calls, or of the
// program's first one. Both are "" where neither is left. All goroutines stand still for
// a moment.
func (l *Log) Where() (site, stack string) {
	if l == nil {
		return "", ""
	}
	return l.r.where()
}

func (r *Recorder) where() (site, stack string) {
	r.mu.Lock()
	numbers := append(append([]int{}, r.callers...), 1)
	r.mu.Unlock()
	all := everybody.take()
	for _, number := range numbers {
		head := "goroutine " + strconv.Itoa(number) + " "
		for _, text := range all {
			if strings.HasPrefix(text, head) {
				return readStack(text)
			}
		}
	}
	return "", ""
}

// stacks returns the stacks of all goroutines, and the room that they needed. It looks first
// with room for a number of bytes.
func stacks(room int) (texts []string, needed int) {
	for ; ; room *= 4 {
		b := make([]byte, min(room, maxStacks))
		n := runtime.Stack(b, true)
		if n < len(b) || len(b) >= maxStacks {
			return strings.Split(string(b[:n]), "\n\n"), len(b)
		}
	}
}

// number returns the number of the running goroutine in stacks, 0 if it is not known.
func number() int {
	var b [64]byte
	text, _ := strings.CutPrefix(string(b[:runtime.Stack(b[:], false)]), "goroutine ")
	text, _, _ = strings.Cut(text, " ")
	n, _ := strconv.Atoi(text)
	return n
}

// readStack finds the line of a stack that is the program's, and leaves the arguments out.
func readStack(text string) (site, stack string) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(lines[0], ":"))
	var nearest [nobodys + 1]string
	for i := 1; i+1 < len(lines); i += 2 {
		f := frameOf(lines[i], lines[i+1])
		line := siteText(f)
		if o := ownerOf(f.Function, f.File); nearest[o] == "" {
			nearest[o] = line
		}
		if b.Len()+len(line)+1 > MaxStack {
			break
		}
		b.WriteString("\n" + line)
	}
	for _, line := range nearest {
		if line != "" {
			return line, b.String()
		}
	}
	return "", b.String()
}

// frameOf reads the two lines of a frame: "pkg.Func(0x1, …)" and "\t/dir/file.go:88 +0x1d".
func frameOf(function, place string) (f runtime.Frame) {
	if rest, made := strings.CutPrefix(function, "created by "); made {
		f.Function, _, _ = strings.Cut(rest, " in goroutine ")
	} else if i := strings.LastIndexByte(function, '('); i > 0 {
		f.Function = function[:i]
	}
	place, _, _ = strings.Cut(strings.TrimSpace(place), " ")
	if i := strings.LastIndexByte(place, ':'); i > 0 {
		f.File = place[:i]
		f.Line, _ = strconv.Atoi(place[i+1:])
	}
	return f
}
