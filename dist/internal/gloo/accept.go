// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/internal/lobby"
)

// listen opens a listener, which the end of the group shuts: for who accepts to close.
func (m *rendezvous) listen(ctx context.Context) (net.Listener, netip.AddrPort, error) {
	l, err := (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", netip.AddrPortFrom(m.addr, 0).String())
	if err != nil {
		return nil, netip.AddrPort{}, fmt.Errorf("dist: group %q over gloo: listen at %v: %w", m.b.cfg.Group, m.addr, err)
	}
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if err := m.b.failure; err != nil {
		l.Close()
		return nil, netip.AddrPort{}, err
	}
	m.b.listeners = append(m.b.listeners, l)
	return l, netip.AddrPortFrom(m.addr, l.Addr().(*net.TCPAddr).AddrPort().Port()), nil
}

// speaking has a listener give those connections alone that have said something, as
// members do at once: strangers who hold theirs and are silent leave room for them.
func (m *rendezvous) speaking(l net.Listener) net.Listener {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	i := slices.Index(m.b.listeners, l)
	if i < 0 { // the group has ended
		return l
	}
	m.b.listeners[i] = lobby.Speaking(l, helloPatience, nil)
	return m.b.listeners[i]
}

// close closes listeners before the group ends.
func (m *rendezvous) close(ls ...net.Listener) {
	m.b.mu.Lock()
	m.b.listeners = slices.DeleteFunc(m.b.listeners, func(l net.Listener) bool { return slices.Contains(ls, l) })
	m.b.mu.Unlock()
	for _, l := range ls {
		if l != nil {
			shut(l)
		}
	}
}

// shut has a listener end a moment later, by who accepts: a connection that it has made
// and nobody has taken would be reset, which ends a process of PyTorch 1.13 that has just
// made it.
func shut(l net.Listener) {
	if late, ok := l.(interface{ SetDeadline(time.Time) error }); !ok || late.SetDeadline(time.Now().Add(shutPatience)) != nil {
		l.Close()
	}
}

// acceptAll takes connections until the listener is closed. caller says whose one is.
func (m *rendezvous) acceptAll(l net.Listener, caller func(net.Conn) (int, error)) {
	defer m.b.running.Done()
	defer l.Close()
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || m.b.why() != nil {
				return
			}
			time.Sleep(dialPause) // out of descriptors, for example
			continue
		}
		if !m.b.opens(conn) { // what was not read would have it reset
			_ = conn.SetReadDeadline(time.Now().Add(shutPatience))
			_, _ = caller(conn)
			conn.Close()
			continue
		}
		m.b.running.Add(1)
		go func() {
			defer m.b.running.Done()
			ok := m.accept(conn, caller)
			m.b.opened(conn)
			if !ok {
				conn.Close()
			}
		}()
	}
}

// admits reports whether a connection that says that it is a rank's may be: it comes from
// where all may come from, or from where that rank is, by the job's store. Nothing else
// on this wire says who somebody is.
func (m *rendezvous) admits(conn net.Conn, rank int) bool {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return false
	}
	from := at.Addr().Unmap()
	if m.b.cfg.Admit == nil || m.b.cfg.Admit(from) || m.published(rank) == from {
		return true
	}
	m.refuse(at, rank, nil)
	return false
}

// refuse tells of a connection that is not taken.
func (m *rendezvous) refuse(from netip.AddrPort, rank int, err error) {
	if m.b.cfg.Refused != nil && m.b.why() == nil && m.b.refused.Add(1) <= maxTold {
		m.b.cfg.Refused(from, rank, err)
	}
}

// published returns the address that a rank has published, as it has before it connects;
// the zero one if there is none.
func (m *rendezvous) published(rank int) netip.Addr {
	ctx, cancel := context.WithTimeout(context.Background(), helloPatience)
	defer cancel()
	go func() {
		select {
		case <-m.b.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	v, err := m.b.cfg.Store.Get(ctx, m.key("", rank))
	if err != nil {
		return netip.Addr{}
	}
	n := len(m.b.cfg.Members)
	if m.b.cfg.Generation == PerPair {
		there, err := parsePairAddress(v, n, rank, m.b.cfg.Rank)
		if err != nil {
			return netip.Addr{}
		}
		return there.addr.Addr().Unmap()
	}
	info, err := parseRankInfo(v, n)
	if err != nil {
		return netip.Addr{}
	}
	return info.addr.addr.Addr().Unmap()
}

// accept takes a connection, if it says whose it is.
func (m *rendezvous) accept(conn net.Conn, caller func(net.Conn) (int, error)) bool {
	_ = conn.SetDeadline(time.Now().Add(helloPatience))
	rank, err := caller(conn)
	if err != nil || rank < 0 || rank >= len(m.mesh.pairs) || m.mesh.pairs[rank] == nil || !m.admits(conn, rank) {
		return false
	}
	if cfg := m.b.cfg.TLS; cfg != nil {
		conn = tls.Server(conn, cfg)
		if err := conn.(*tls.Conn).Handshake(); err != nil {
			if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
				m.refuse(from.AddrPort(), rank, err)
			}
			return false
		}
	}
	return m.attach(rank, conn)
}

// callerByNumber reads the number of a connection.
func (m *rendezvous) callerByNumber(conn net.Conn) (int, error) {
	var number [8]byte
	for n := 0; n < len(number); {
		k, err := conn.Read(number[n:])
		if n += k; err != nil && n < len(number) {
			return 0, err
		}
	}
	rank := binary.LittleEndian.Uint64(number[:])
	if rank >= uint64(len(m.mesh.pairs)) {
		return 0, fmt.Errorf("a connection with the number %d, of %d ranks", rank, len(m.mesh.pairs))
	}
	return int(rank), nil
}

// attach gives a rank's pair its connection.
func (m *rendezvous) attach(rank int, conn net.Conn) bool {
	_ = conn.SetDeadline(time.Time{})
	if !m.mesh.pairs[rank].attach(conn) {
		return false
	}
	select {
	case m.attached <- struct{}{}:
	default:
	}
	return true
}
