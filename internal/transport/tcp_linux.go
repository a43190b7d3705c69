// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Unanswered returns for how long the peer's system has answered nothing of what this one has sent repeatedly, data
// or probes ([Conn.Probe]); 0 where there is nothing to answer. A program that reads slowly, or is stopped, does not
// count, for its system answers. Any goroutine may call it, at any time: see [Line].
func (c *Conn) Unanswered() time.Duration {
	if link, ok := c.nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	return c.line.look(tcpInfo(c.socketOf()))
}

// Backoff returns how long the system pauses at the moment before it sends again what
// the peer's machine has not answered; 0 where there is no such thing.
func (c *Conn) Backoff() time.Duration {
	info := tcpInfo(c.socketOf())
	if info == nil || !stuck(info) {
		return 0
	}
	return time.Duration(info.Rto) * time.Microsecond
}

// RetrySoon bounds the pause after which the system sends again what the peer has not answered on a TCP
// connection, so that it notices soon when the network comes back. The bound is a second at least; the first
// pauses are 200 ms. By default each pause is twice as long as the one before. The system gives the connection up
// after about 15 tries, so a caller that waits longer for the network needs longer pauses. Old systems do not
// support it.
func (c *Conn) RetrySoon(most time.Duration) {
	raw := c.socketOf()
	if raw == nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // they know nothing of it for unix sockets
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(min(max(most, time.Second), maxRepeat).Milliseconds()))
	})
}

// maxRepeat is the longest pause that the system knows.
const maxRepeat = 2 * time.Minute

// Unanswered is [Conn.Unanswered] of a connection that is no Conn; 0 for one that is not
// over TCP.
func (l *Line) Unanswered(nc net.Conn) time.Duration {
	if link, ok := nc.(interface{ Unanswered() time.Duration }); ok {
		return link.Unanswered()
	}
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS
		nc = wrapped.NetConn()
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, _ := tcp.SyscallConn()
	return l.look(tcpInfo(raw))
}

// Line is what is known of a TCP connection on which the peer's machine does not answer.
// The zero value is of one where it does.
type Line struct {
	mu      sync.Mutex
	since   time.Time     // when the first was sent of what is not answered
	counted time.Duration // up to the last try that has had the time to be answered
}

// look returns for how long nothing has been answered, up to the last try: while the
// system pauses nothing can be. A pause may be as long as all before it, so that the half
// of all counts in any case.
func (l *Line) look(info *unix.TCPInfo) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if info == nil || info.Probes == 0 && !stuck(info) {
		l.since, l.counted = time.Time{}, 0
		return 0
	}
	now, heard, tried := time.Now(), milliseconds(info.Last_ack_recv), milliseconds(info.Last_data_sent)
	if l.since.IsZero() { // that the line was at rest before does not count
		l.since = now
		if info.Probes == 0 {
			l.since = now.Add(-min(heard, tried))
		}
	}
	whole := min(heard, now.Sub(l.since))
	if info.Probes == 1 { // the answer may be on its way
		return 0
	} else if info.Probes > 1 {
		return whole
	}
	if answered := 2*time.Duration(info.Rtt)*time.Microsecond + answerTime; tried >= answered {
		l.counted = max(l.counted, whole-tried)
	}
	return max(l.counted, whole/2)
}

// answerTime is what a machine may take to answer, besides the way.
const answerTime = 50 * time.Millisecond

func milliseconds(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

// stuck says that something has been sent again and is not answered. A full peer answers
// with a window of 0, less and less often.
func stuck(info *unix.TCPInfo) bool {
	return info.Unacked > 0 && info.Retransmits > 0 && info.Snd_wnd > 0
}

// tcpInfo returns what the system knows of a TCP connection, nil where that is nothing.
func tcpInfo(raw syscall.RawConn) (info *unix.TCPInfo) {
	if raw != nil {
		_ = raw.Control(func(fd uintptr) {
			// No such thing is known of unix sockets: they give an error.
			info, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
	}
	return info
}

// GiveUpAfter makes the system end a TCP connection on which the peer has taken nothing of what was sent for that
// long: the peer's machine has gone, the network is cut, or the peer's program has stopped and its buffers are
// full. By default the system tries for a quarter of an hour, at growing intervals, so that it notices late when
// the network comes back.
func (c *Conn) GiveUpAfter(limit time.Duration) {
	nc := c.nc
	if link, ok := nc.(*tlsLink); ok {
		nc = link.wire.Conn
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it has been closed
	}
	_ = raw.Control(func(fd uintptr) { // without it the system's own limit holds
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}
