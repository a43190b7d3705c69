// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"net"
	"sync"
	"time"
)

// Forever is a patience that does not end: for clients that may connect and speak much later.
const Forever = time.Duration(1<<63 - 1)

// maxSpeakers is how many that have spoken may wait for Accept.
const maxSpeakers = 1024

// Speaking returns a listener of those connections to another one that have said something,
// of which nothing has been read: for protocols whose clients speak first and prove nothing.
// The others wait in a lobby, within its bounds, if waits says so of both their ends or is nil; else they
// are given at once, to be turned away. Where the system cannot tell who has spoken it is
// the listener itself.
func Speaking(ln net.Listener, patience time.Duration, waits func(peer, here net.Addr) bool) net.Listener {
	s := &speaking{Listener: ln, in: make(chan net.Conn, maxSpeakers), done: make(chan struct{})}
	l := &Lobby{ln: ln, peek: true, waits: waits, Config: Config{Patience: patience, Enter: s.enter, Judge: func(said []byte) (int, error) { return 1 - len(said), nil }}}
	d := polling(l)
	if !l.start(d) {
		return ln
	}
	s.lobby, s.deafen = l, d.(interface{ deafen() }).deafen
	return s
}

type speaking struct {
	net.Listener // for its address
	lobby        *Lobby
	deafen       func()
	in           chan net.Conn
	once         sync.Once
	done         chan struct{}
	err          error
}

func (s *speaking) enter(nc net.Conn, _ Source, _ []byte) {
	select {
	case s.in <- nc:
	default:
		nc.Close()
	}
}

// Accept implements [net.Listener].
func (s *speaking) Accept() (net.Conn, error) {
	select {
	case nc := <-s.in:
		return nc, nil
	case <-s.done:
		return nil, &net.OpError{Op: "accept", Net: s.Addr().Network(), Addr: s.Addr(), Err: net.ErrClosed}
	}
}

// Close implements [net.Listener].
func (s *speaking) Close() error {
	s.once.Do(func() {
		s.err = s.lobby.Close()
		close(s.done)
		for {
			select {
			case nc := <-s.in:
				nc.Close()
				continue
			default:
			}
			return
		}
	})
	return s.err
}

// Deaf closes a listener that [Speaking] has given, but for those who have come and say nothing.
func Deaf(l net.Listener) {
	if s, ok := l.(*speaking); ok {
		s.deafen()
		return
	}
	l.Close()
}

// SetDeadline closes the listener then.
func (s *speaking) SetDeadline(t time.Time) error {
	time.AfterFunc(time.Until(t), func() { s.Close() })
	return nil
}
