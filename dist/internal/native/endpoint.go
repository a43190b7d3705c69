// SPDX-License-Identifier: Apache-2.0

package native

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Endpoint is where a [Fabric] hands over the connections that are for one
// group.
type Endpoint struct {
	fabric   *Fabric
	group    string
	numRanks int
	serve    func(*transport.Conn, hello) (keep bool)

	mu      sync.Mutex
	open    map[*transport.Conn]struct{} // being answered
	closed  bool
	why     string // the group could not be made
	running sync.WaitGroup
}

// attach makes a group reachable: serve answers its connections, first those that wait. The
// connections have a deadline for the answer.
func (f *Fabric) attach(group string, numRanks int, serve func(*transport.Conn, hello) (keep bool)) (*Endpoint, error) {
	e := &Endpoint{fabric: f, group: group, numRanks: numRanks, serve: serve, open: map[*transport.Conn]struct{}{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, was := f.closed[group]
	switch {
	case f.ended:
		return nil, errors.New("this rank has left the job")
	case f.ends[group] != nil || was:
		return nil, fmt.Errorf("group %q has been made before", group)
	}
	f.ends[group] = e
	if made := f.parked[group]; made != nil {
		close(made)
		delete(f.parked, group)
	}
	return e, nil
}

// answer serves a connection, unless the group is closed.
func (e *Endpoint) answer(conn *transport.Conn, h hello) (keep bool) {
	e.mu.Lock()
	if e.closed {
		why := e.why
		e.mu.Unlock()
		refuse(conn, &closedError{why})
		return false
	}
	e.open[conn] = struct{}{}
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()
	if h.rank >= e.numRanks {
		refuse(conn, fmt.Errorf("hello from rank %d of a group of %d", h.rank, e.numRanks))
	} else {
		_ = conn.SetDeadline(time.Now().Add(replyTimeout))
		keep = e.serve(conn, h)
	}
	e.mu.Lock()
	delete(e.open, conn)
	e.mu.Unlock()
	return keep
}

// fail sets why the group, which is about to be closed, could not be made: see
// [Config.reason].
func (e *Endpoint) fail(why string) {
	e.mu.Lock()
	e.why = why
	e.mu.Unlock()
}

// Close makes the group unreachable: connections that are being answered end, and later
// hellos are refused.
func (e *Endpoint) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	for c := range e.open {
		c.Close()
	}
	e.mu.Unlock()
	f := e.fabric
	f.mu.Lock()
	delete(f.ends, e.group)
	f.markClosed(e.group, e.why)
	f.mu.Unlock()
	e.running.Wait()
}

// markClosed notes that a group is closed, and why if it could not be made. The fabric is
// locked.
func (f *Fabric) markClosed(group, why string) {
	f.closed[group] = why
	f.order = append(f.order, group)
	if len(f.order) > maxClosed {
		delete(f.closed, f.order[0])
		f.order = f.order[1:]
	}
	if made := f.parked[group]; made != nil {
		close(made) // nobody waits for it any more
		delete(f.parked, group)
	}
}

// Forget notes that this rank will not make a group, and why. Hellos to it are refused.
func (f *Fabric) Forget(group, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, was := f.closed[group]; !was && f.ends[group] == nil {
		f.markClosed(group, why)
	}
}

// closedText is the refusal of a hello to a group that this rank has closed. If the group
// could not be made, a colon and the reason follow.
const closedText = "this rank has closed the group"

// refusal makes the error of a refused hello.
func refusal(text []byte) error {
	if why, ok := strings.CutPrefix(string(text), closedText); ok {
		return &closedError{strings.TrimPrefix(why, ": ")}
	}
	return fmt.Errorf("refused: %s", text)
}

// closedError says that a rank has closed the group, or has failed to make it. why is a
// [Config.reason].
type closedError struct{ why string }

// reason returns why a group could not be made, for members that come late: the text, and
// where another rank is at fault, a zero byte and the fault. A late member must blame that
// rank too, and not the rank that tells it.
func (cfg *Config) reason(err error) string {
	const most = 300 // bytes each, of a frame
	text := strings.ReplaceAll(err.Error(), "\x00", "")
	text = text[:min(len(text), most)]
	var other *fault.RankError
	if !errors.As(err, &other) {
		return text
	}
	rank, kind, about := cfg.faultOf(err)
	return text + "\x00" + string(encodeFault(rank, kind, about[:min(len(about), most)]))
}

// fault returns the fault because of which a group of numRanks could not be made.
func (e *closedError) fault(numRanks int) (rank int, kind uint32, text string, ok bool) {
	_, about, ok := strings.Cut(e.why, "\x00")
	if !ok {
		return 0, 0, "", false
	}
	rank, kind, text, err := parseFault([]byte(about), numRanks)
	return rank, kind, text, err == nil
}

func (e *closedError) text() string {
	text, _, _ := strings.Cut(e.why, "\x00")
	return text
}

func (e *closedError) Error() string {
	if e.text() == "" {
		return closedText
	}
	return closedText + ": " + e.text()
}

// cause returns the cause of an error about the rank.
func (e *closedError) cause() error {
	if e.text() == "" {
		return fault.ErrLeft
	}
	return errors.New(e.text())
}

// takeHello reads the first frame of a connection. It tells the peer what is wrong with a
// hello that cannot be read.
func takeHello(conn *transport.Conn) (hello, error) {
	kind, payload, err := conn.ReadFrame(nil, maxHello)
	if err != nil {
		return hello{}, err
	}
	if kind != frameHello {
		return hello{}, fmt.Errorf("first frame of kind %d", kind)
	}
	h, err := parseHello(payload)
	if err != nil {
		refuse(conn, err)
	}
	return h, err
}
