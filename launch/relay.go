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
	// maxLine is the length of the longest line. A longer line is broken into pieces, each
	// of which becomes a line.
	maxLine = 256 << 10
	// After a stream's deadline, a read waits for latePatience for what the pipe still
	// holds. At most lateBytes are read, because another process may go on writing.
	latePatience = 50 * time.Millisecond
	lateBytes    = 2 << 20
)

// sink is a destination to which several ranks write whole lines. Once a write has failed,
// all later writes fail too.
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

// newSinks makes the sinks of standard output and error. If both are the same file (a
// terminal, 2>&1), they are one sink with one lock, so that their lines do not mix. If they
// are not, they are two, so that a reader that stops reading one does not hold up the other.
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

// relay copies one stream of one rank to a sink, to a file, or to both. The sink gets each
// line behind a prefix, without control characters that a terminal would obey. The file
// gets the stream as it is. A carriage return ends a line too, so that progress bars show.
// All complete lines of one read go out in one write.
type relay struct {
	prefix  []byte
	dst     *sink             // nil: the stream is not shown
	file    *os.File          // nil: the stream is not kept
	tail    *tail             // nil: the last lines are not kept
	watch   func(line []byte) // nil: nobody watches
	hider   hider             // covers the token
	partial []byte
	out     []byte

	// filtered gets the lines that contain one of needles, with their prefix; may be nil.
	filtered *sink
	needles  []string
	matches  []byte

	kept    []byte      // what file gets next
	trouble func(error) // is called when file cannot be written
}

// stream is what a relay reads: a pipe from a rank.
type stream interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// run copies until the end of r, and then closes r. If the destination cannot be written
// any more, because its reader has gone, run closes r at once. The rank then gets a broken
// pipe, as it would without a relay.
//
// A read deadline on r says that the rank has ended. The stream ends soon, unless another
// process holds the pipe open. run still copies what the pipe holds, however long the
// destination takes.
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

// take adds bytes of the stream. Complete lines go to c.out.
func (c *relay) take(b []byte) {
	for len(b) > 0 {
		// The previous read ended with a carriage return.
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

// lineEnd returns the length of the first line of b with its line end: "\n", "\r\n", or
// "\r" before another character. It returns -1 if b has no complete line.
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
		return -1 // no line end, or a carriage return that may be half of "\r\n"
	}
}

// line completes the partial line and passes it on.
func (c *relay) line(rest []byte) {
	c.partial = append(c.partial, rest...)
	c.hider.hide(c.partial)
	if c.file != nil {
		c.kept = append(c.kept, c.partial...)
	}
	c.show()
}

// breakUp makes a line of a partial line that is too long. If the last character is not
// complete, that one stays.
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

// broken makes a line of a partial line that has no end. It adds a line end that the rank
// has not written.
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
	if c.watch != nil {
		c.watch(c.partial)
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

// end passes a last line on that has no end.
func (c *relay) end() {
	if len(c.partial) > 0 {
		c.broken()
	}
}

// flush writes the complete lines. It returns false if nobody reads them any more. The rank
// should notice that.
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
