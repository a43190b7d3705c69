// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/internal/visible"
)

const (
	readSize = 32 << 10
	// maxLine bounds what is kept of a line that does not end: a longer one is
	// broken, each piece a line of its own.
	maxLine = 256 << 10
	// The end of a rank's stderr that a failure report shows.
	tailLines = 20
	tailBytes = 8 << 10
	// After a stream's deadline: how long a read waits for what the pipe holds,
	// and how much is taken from a stranger who goes on writing.
	latePatience = 50 * time.Millisecond
	lateBytes    = 2 << 20
)

// sink is a destination that several ranks write to, in whole lines. Once a
// write has failed, all later ones fail too.
type sink struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(b)
	s.err = err
	return n, err
}

// newSinks makes the destinations for stdout and stderr: one lock for both
// where they are the same file (a terminal, 2>&1), so that lines of one do not
// cut into lines of the other; two where they are not, so that a reader that
// stops at one does not hold up the other.
func newSinks(stdout, stderr io.Writer) (out, err *sink) {
	out = &sink{w: stdout}
	if sameFile(stdout, stderr) {
		return out, out
	}
	return out, &sink{w: stderr}
}

func sameFile(a, b io.Writer) bool {
	fa, ok := a.(*os.File)
	fb, ok2 := b.(*os.File)
	if !ok || !ok2 {
		return false
	}
	sa, err := fa.Stat()
	sb, err2 := fb.Stat()
	return err == nil && err2 == nil && os.SameFile(sa, sb)
}

// relay copies one stream of one rank to a sink, each line behind a prefix and without
// control characters that a terminal would obey, to a file as it is, or both. A carriage
// return ends a line too, so that progress bars show; all complete lines of a read go out
// in one write.
type relay struct {
	prefix  []byte
	dst     *sink    // nil: not shown
	file    *os.File // nil: not kept
	tail    *tail    // nil: not kept
	hider   hider    // of what is not to be shown
	partial []byte
	out     []byte

	// filtered gets the lines, prefix and all, that contain one of needles; nil: none.
	filtered *sink
	needles  []string
	matches  []byte

	kept    []byte      // for file
	trouble func(error) // is told of a file that cannot be written
}

// stream is what a relay reads: a pipe from a rank.
type stream interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// run copies until the end of r, and then closes it. Where the destination
// cannot be written to any more (its reader has gone), r is closed at once, so
// that the rank gets what it would have got without a relay: a broken pipe.
//
// A read deadline on r says that the rank has gone and that the end of the
// stream, if nobody else holds the pipe open, is near. What the pipe still
// holds is copied all the same, however long the destination takes.
func (c *relay) run(r stream) {
	defer r.Close()
	defer c.close()
	buf := make([]byte, readSize)
	late, left := false, lateBytes
	for {
		n, err := r.Read(buf)
		if n > 0 {
			late = false
			c.take(buf[:n])
			if !c.flush() {
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && !late && left > 0 {
			late, left = true, left-readSize
			if r.SetReadDeadline(time.Now().Add(latePatience)) == nil {
				continue
			}
		}
		if err != nil {
			c.end()
			c.flush()
			return
		}
	}
}

func (c *relay) close() {
	if c.file != nil {
		c.file.Close()
	}
}

// take adds bytes of the stream; complete lines go to c.out.
func (c *relay) take(b []byte) {
	for len(b) > 0 {
		// A carriage return that was last in the previous read.
		if k := len(c.partial); k > 0 && c.partial[k-1] == '\r' {
			if b[0] == '\n' {
				c.line(b[:1])
				b = b[1:]
			} else {
				c.line(nil)
			}
			continue
		}
		i := lineEnd(b)
		if i < 0 {
			c.partial = append(c.partial, b...)
			if len(c.partial) > maxLine {
				c.breakUp()
			}
			return
		}
		c.line(b[:i])
		b = b[i:]
	}
}

// lineEnd returns the length of the first line of b, with its end ("\n", "\r\n",
// or "\r" before anything else), or -1 where b has no complete line.
func lineEnd(b []byte) int {
	nl := bytes.IndexByte(b, '\n')
	head := b
	if nl >= 0 {
		head = b[:nl]
	}
	cr := bytes.IndexByte(head, '\r')
	switch {
	case cr >= 0 && cr+1 < len(head):
		return cr + 1
	case nl >= 0:
		return nl + 1
	default:
		return -1 // no end, or a carriage return that may be half of one
	}
}

// line moves the partial line and what completes it to where it goes.
func (c *relay) line(rest []byte) {
	c.partial = append(c.partial, rest...)
	c.hider.hide(c.partial)
	if c.file != nil {
		c.kept = append(c.kept, c.partial...)
	}
	c.show()
}

// breakUp makes a line of a partial one that is too long, but for the character that it ends in,
// if that has more bytes to come.
func (c *relay) breakUp() {
	n := len(c.partial)
	for i := n - 1; i >= 0 && i > n-utf8.UTFMax; i-- {
		if utf8.RuneStart(c.partial[i]) {
			if !utf8.FullRune(c.partial[i:]) {
				n = i
			}
			break
		}
	}
	rest := slices.Clone(c.partial[n:])
	c.partial = c.partial[:n]
	c.broken()
	c.partial = append(c.partial, rest...)
}

// broken makes a line of a partial one that has no end: a line end is shown
// that the rank has not written.
func (c *relay) broken() {
	c.hider.hide(c.partial)
	if c.file != nil {
		c.kept = append(c.kept, c.partial...)
	}
	c.partial = append(c.partial, '\n')
	c.show()
}

func (c *relay) show() {
	if c.tail != nil {
		c.tail.add(c.partial)
	}
	if c.dst != nil {
		text := bytes.TrimRight(c.partial, "\r\n")
		c.out = visible.Append(append(c.out, c.prefix...), text)
		c.out = append(c.out, c.partial[len(text):]...)
	}
	if c.filtered != nil && slices.ContainsFunc(c.needles, func(s string) bool { return bytes.Contains(c.partial, []byte(s)) }) {
		c.matches = append(append(c.matches, c.prefix...), c.partial...)
	}
	c.partial = c.partial[:0]
}

// end completes a last line that has no end.
func (c *relay) end() {
	if len(c.partial) > 0 {
		c.broken()
	}
}

// flush writes what is complete. It returns false where nobody gets it any more,
// and then the rank should know.
func (c *relay) flush() bool {
	if len(c.kept) > 0 && c.file != nil {
		if _, err := c.file.Write(c.kept); err != nil {
			c.file.Close()
			c.file = nil
			c.trouble(err)
		}
		c.kept = c.kept[:0]
	}
	if len(c.matches) > 0 {
		_, _ = c.filtered.Write(c.matches)
		c.matches = c.matches[:0]
	}
	if len(c.out) == 0 {
		return true
	}
	_, err := c.dst.Write(c.out)
	c.out = c.out[:0]
	if err != nil && c.file != nil { // the file goes on
		c.dst, err = nil, nil
	}
	return err == nil
}
