// SPDX-License-Identifier: Apache-2.0

package vnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// segmentBytes is the most that arrives at once.
	segmentBytes = 64 << 10
	// segmentHead is what a segment costs beside its bytes.
	segmentHead = 64
	// window is how much may be under way or lie unread on a path without
	// delay; a long or wide path has more.
	window = 1 << 20
)

// conn is an end of a connection. The network's lock guards it.
type conn struct {
	host, far     *Host
	id            uint64
	accepted      bool // the end that was dialled
	peer          *conn
	local, remote *net.TCPAddr

	cond            sync.Cond // on the network's lock: any change
	inbox           [][]byte  // what has come
	unread          int       // bytes of it
	ended           bool      // after it comes the end
	broken          error     // or this
	unacked         int       // bytes sent that the peer has not read
	acked           int       // bytes that it has read at the instant ackedAt
	ackedAt         int64
	waiting         bool   // for room
	frozen          bool   // of a process that goes on or ends: not its turn yet
	closed          bool   // by who has it
	sent            uint64 // parcels
	readBy, writeBy deadline
}

func newConn(near, far *Host, id uint64, accepted bool) *conn {
	c := &conn{host: near, far: far, id: id, accepted: accepted}
	c.cond.L = &near.net.mu
	near.conns[c] = struct{}{}
	return c
}

// parcel makes what goes to the peer.
func (c *conn) parcel(size int, arrive func()) parcel {
	c.sent++
	return parcel{from: c.host.number, to: c.far.number, conn: c.id, reply: c.accepted, n: c.sent, size: size, arrive: arrive}
}

// state returns why an operation cannot go on, and whether the host is stopped.
func (c *conn) state(by *deadline) (stopped bool, err error) {
	switch {
	case c.host.dead && !c.frozen:
		return false, syscall.ECONNRESET
	case c.closed: // then what happens to the host does not wake who waits
		return false, net.ErrClosed
	case c.host.stopped > 0 || c.frozen:
		return true, nil
	case by.passed():
		return false, os.ErrDeadlineExceeded
	}
	return false, nil
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	for {
		stopped, err := c.state(&c.readBy)
		switch {
		case err != nil:
			return 0, err
		case stopped:
		case len(p) == 0:
			return 0, nil
		case c.unread > 0:
			return c.take(p), nil
		case c.broken != nil:
			return 0, c.broken
		case c.ended:
			return 0, io.EOF
		}
		c.cond.Wait()
	}
}

// take moves what has come to p.
func (c *conn) take(p []byte) int {
	taken := 0
	for taken < len(p) && len(c.inbox) > 0 {
		n := copy(p[taken:], c.inbox[0])
		taken += n
		if c.inbox[0] = c.inbox[0][n:]; len(c.inbox[0]) == 0 {
			c.inbox[0] = nil
			c.inbox = c.inbox[1:]
		}
	}
	c.unread -= taken
	c.peer.ack(taken)
	return taken
}

// ack takes what the peer has read. Who writes has the room from the next
// instant on: what it finds does not depend on who was first at this one.
func (c *conn) ack(num int) {
	if now := c.host.net.now(); c.ackedAt != now {
		c.acked, c.ackedAt = 0, now
	}
	c.unacked -= num
	c.acked += num
	if c.waiting {
		c.waiting = false
		c.unblock()
	}
}

// unblock wakes who waits for room, when it is this connection's turn.
func (c *conn) unblock() { c.host.net.send(c.parcel(0, c.cond.Broadcast)) }

// Pending reports whether something has come that has not been read. On a
// stopped host it is true: nobody there can say that nothing has come.
func (c *conn) Pending() bool {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	return c.unread > 0 || c.ended || c.broken != nil || c.host.stopped > 0 || c.frozen
}

// Unanswered returns for how long no answer can have come from the far host,
// whose system would answer at once.
func (c *conn) Unanswered() time.Duration {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	since := n.now()
	for _, way := range []*path{n.path(c.host.number, c.far.number), n.path(c.far.number, c.host.number)} {
		if way.cuts > 0 {
			since = min(since, way.cutAt)
		}
	}
	return time.Duration(n.now() - since)
}

// room is how much may be sent now.
func (c *conn) room() int {
	n := c.host.net
	way := n.path(c.host.number, c.far.number)
	room := window + int(2*way.BytesPerSecond*way.Latency.Seconds()) - c.unacked
	if c.ackedAt == n.now() {
		room -= c.acked
	}
	return room
}

// Write implements net.Conn. What a stopped process writes leaves it when it
// goes on. It does not wait for that: its goroutines run, as those of a process
// that is stopped in earnest do not, and one that waited here with a lock held
// would keep others from a wait that lets virtual time go on.
func (c *conn) Write(p []byte) (int, error) {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	written := 0
	for {
		_, err := c.state(&c.writeBy)
		room := c.room()
		switch {
		case c.host.dead:
			return written, syscall.ECONNRESET
		case err != nil:
			return written, err
		case c.broken != nil:
			return written, c.broken
		case written == len(p):
			return written, nil
		case room > 0:
			n := min(room, segmentBytes, len(p)-written)
			data := append([]byte(nil), p[written:written+n]...)
			written += n
			c.unacked += n
			if c.host.stopped > 0 {
				c.host.asleep = append(c.host.asleep, func() { c.sendData(data) })
			} else {
				c.sendData(data)
			}
			continue
		}
		if c.acked > 0 && c.ackedAt == c.host.net.now() {
			c.unblock()
		} else {
			c.waiting = true
		}
		c.cond.Wait()
	}
}

// sendData sends a segment.
func (c *conn) sendData(data []byte) {
	peer := c.peer
	c.host.net.send(c.parcel(segmentHead+len(data), func() {
		switch {
		case peer.host.dead || peer.closed:
			peer.sendReset()
		case peer.broken == nil:
			peer.inbox = append(peer.inbox, data)
			peer.unread += len(data)
			peer.cond.Broadcast()
		}
	}))
}

// sendEnd tells the peer that nothing more comes: a reset, if what came lies
// unread.
func (c *conn) sendEnd() {
	peer := c.peer
	switch {
	case peer == nil:
	case c.unread > 0:
		c.sendReset()
	default:
		c.host.net.send(c.parcel(segmentHead, func() {
			peer.ended = true
			peer.cond.Broadcast()
		}))
	}
}

func (c *conn) sendReset() {
	peer := c.peer
	c.host.net.send(c.parcel(segmentHead, func() { peer.lose(syscall.ECONNRESET) }))
}

// lose ends the connection at this end.
func (c *conn) lose(err error) {
	if c.broken == nil {
		c.broken = err
		c.cond.Broadcast()
	}
}

// shut closes the connection. What a stopped process closes stays as it is for
// the peer until it goes on.
func (c *conn) shut() {
	if c.closed {
		return
	}
	c.closed = true
	c.readBy.stop()
	c.writeBy.stop()
	delete(c.host.conns, c)
	c.cond.Broadcast()
	switch {
	case c.host.dead:
	case c.host.stopped > 0:
		c.host.asleep = append(c.host.asleep, c.sendEnd)
	default:
		c.sendEnd()
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	c.shut()
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	c.readBy.set(c, t)
	c.writeBy.set(c, t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	c.readBy.set(c, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	c.writeBy.set(c, t)
	return nil
}

// deadline is a time after which waits end.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) set(c *conn, t time.Time) {
	d.stop()
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 && !c.closed && !c.host.dead {
		d.timer = time.AfterFunc(wait, func() {
			c.host.net.mu.Lock()
			defer c.host.net.mu.Unlock()
			c.cond.Broadcast()
		})
	}
	c.cond.Broadcast()
}
