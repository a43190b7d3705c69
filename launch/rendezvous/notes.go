// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"io"
	"time"
)

// notes hands what the agent says to a goroutine that writes it. Whoever reads it
// may stop to (a terminal, a full pipe), and the agent's loop must not stop with it:
// it is what kills the ranks when the node is cut off. What there is no room
// for is not said.
type notes struct {
	lines   chan []byte
	written chan struct{}
}

const (
	maxNotes      = 64          // that wait to be written
	notesPatience = time.Second // for the last of them
)

func newNotes(w io.Writer) *notes {
	n := &notes{make(chan []byte, maxNotes), make(chan struct{})}
	go func() {
		defer close(n.written)
		for line := range n.lines {
			_, _ = w.Write(line)
		}
	}()
	return n
}

// Write never waits and never fails.
func (n *notes) Write(b []byte) (int, error) {
	select {
	case n.lines <- bytes.Clone(b):
	default:
	}
	return len(b), nil
}

// end waits a moment until all has been written.
func (n *notes) end() {
	close(n.lines)
	late := time.NewTimer(notesPatience)
	defer late.Stop()
	select {
	case <-n.written:
	case <-late.C:
	}
}
