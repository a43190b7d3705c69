// SPDX-License-Identifier: Apache-2.0

// Package lobby accepts every connection to a listener at once, and holds it until its first
// bytes show whether it may enter.
//
// The system's queue of a listener is served in the order in which connections come, so a
// connection that waits there keeps out all later ones. A lobby leaves none there. A connection in
// the lobby costs a descriptor and some hundred bytes, but no goroutine. To accept a connection and
// turn it away takes less processor time than to make it.
//
// A lobby holds as many connections as a share of the process's descriptors allows, and none for
// longer than its patience. When one too many comes, the source with the most connections in the
// lobby loses its oldest. So strangers push out strangers. A member from another host does not
// notice them. A member from the same host has the time in which they fill the lobby.
//
// A connection that has sent too little is reset, so that the system keeps nothing of it. A
// connection that has sent something wrong sees the end of the stream first. So a peer can tell a
// refusal from a want of room.
//
// Files: lobby.go (Lobby), queue.go (the connections held, by source), epoll_linux.go and
// goroutines.go (two ways to wait for their first bytes), deferred.go (a listener whose clients speak
// first and prove nothing), descriptors_*.go.
package lobby

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Config says who may enter.
type Config struct {
	// Patience is how long a connection may take for its first bytes.
	Patience time.Duration
	// Most bounds the connections held, 0 for what the descriptors of the process allow.
	Most int
	// Admit may turn a connection away before it has sent anything. nil admits all.
	Admit func(from Source) error
	// Judge decides by the first bytes of a connection, which is turned away if there is an
	// error. need is how many bytes Judge has to see to decide, 0 if the connection may enter. No
	// more bytes are read than that. Given no bytes, Judge returns how many it needs first.
	Judge func(said []byte) (need int, why error)
	// Enter takes a connection and the bytes that it has sent so far, and must not block.
	Enter func(nc net.Conn, from Source, said []byte)
	// Refuse is called for each connection that was turned away, and must not block. It may be
	// nil.
	Refuse func(from Source, why error)
	// Crowd is called when a thousand or eight thousand connections are held, once a minute at
	// most: with their number, and the source with the most of them. It must not block, and may be
	// nil.
	Crowd func(held int, most Source, of int)
}

// Reasons for which a connection is turned away, beside those of Admit and Judge.
var (
	ErrSilent  = errors.New("nothing was sent, as by a port scan")
	ErrSlow    = errors.New("the first bytes did not come in time")
	ErrCut     = errors.New("the connection ended within its first bytes")
	ErrCrowded = errors.New("more connections that proved nothing came at once than the process can hold")
)

// Source is where a connection comes from: a host, or a user of this host. Sources can be compared. An
// IPv6 network of 2⁶⁴ addresses is one source, for one host may use all of them.
type Source struct {
	addr netip.Addr
	user int
}

// noUser is the user of a unix connection that the system does not tell.
const noUser = -1

// Host returns the source that is a host.
func Host(addr netip.Addr) Source {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if net, err := addr.Prefix(64); err == nil && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			addr = net.Addr()
		}
	}
	return Source{addr: addr, user: noUser}
}

// User returns the source that is a user of this host.
func User(id int) Source { return Source{user: id} }

// SourceOf returns where a connection comes from.
func SourceOf(nc net.Conn) Source {
	if tcp, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		if a, ok := netip.AddrFromSlice(tcp.IP); ok {
			return Host(a)
		}
	}
	if id, ok := peerUser(nc); ok {
		return User(id)
	}
	return Source{user: noUser}
}

// Unix returns the number of a user of this host.
func (s Source) Unix() (user int, ok bool) { return s.user, !s.addr.IsValid() && s.user != noUser }

// Addr returns the address of a host, the zero one for a user of this host.
func (s Source) Addr() netip.Addr { return s.addr }

func (s Source) String() string {
	switch {
	case s.addr.IsValid():
		return s.addr.String()
	case s.user == noUser:
		return "this host"
	}
	return "user " + strconv.Itoa(s.user) + " of this host"
}

// Lobby holds the connections of a listener until they may enter.
type Lobby struct {
	Config
	ln     net.Listener
	peek   bool // what is said is not read, if one byte decides
	waits  func(peer, here net.Addr) bool
	driver driver
	mu     sync.Mutex
	closed bool
	deaf   bool // the listener is to be closed
	once   sync.Once
	err    error
}

// driver takes connections and reads their first words.
type driver interface {
	// run takes connections until stop is called.
	run()
	// stop ends run, and turns out who is in the lobby.
	stop()
}

// New opens a lobby in front of a listener, which it owns.
func New(ln net.Listener, c Config) *Lobby {
	l := &Lobby{Config: c, ln: ln}
	if !l.start(polling(l)) {
		l.start(reading(l))
	}
	return l
}

// start has a driver take connections, if there is one.
func (l *Lobby) start(d driver) bool {
	if d == nil {
		return false
	}
	if l.Most == 0 {
		l.Most = math.MaxInt
	}
	lobbies.Add(1)
	l.driver = d
	go d.run()
	return true
}

// Close stops listening and closes the connections in the lobby. Those that have entered stay.
func (l *Lobby) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.driver.stop()
		lobbies.Add(-1)
	})
	return l.err
}

// ended says whether the lobby has been closed.
func (l *Lobby) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (l *Lobby) isDeaf() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

func (l *Lobby) refuse(from Source, why error) {
	if l.Refuse != nil {
		l.Refuse(from, why)
	}
}

// All lobbies of a process together may hold a part of its descriptors; the others are for the job. A
// lobby that holds no more than its share loses nothing to another one.
var (
	lobbies atomic.Int64
	held    atomic.Int64
	// room is how many all lobbies may hold.
	room = sync.OnceValue(func() int { return min(max(descriptors()/2, leastRoom), mostRoom) })
)

const (
	leastRoom = 8
	mostRoom  = 1 << 14
	// usualDescriptors is taken for the limit where the system does not tell.
	usualDescriptors = 1024
)

// crowdLevels are the numbers of connections held that are told.
var crowdLevels = [...]int{1000, 8000}

const crowdPause = time.Minute

// count tells of a crowd, if it has just become one.
func (l *Lobby) count(vs *visitors) {
	if l.Crowd == nil {
		return
	}
	for i, level := range crowdLevels {
		if vs.num == level && time.Since(vs.told[i]) > crowdPause {
			vs.told[i] = time.Now()
			l.Crowd(level, vs.crowds[0].Source, vs.crowds[0].num)
		}
	}
}

// crowded says whether a lobby that holds n has too many.
func (l *Lobby) crowded(n int) bool {
	return n >= l.Most || int(held.Load()) >= room() && n > room()/int(max(lobbies.Load(), 1))
}

// pause is how long taking connections rests when the system has no descriptors or no memory for one.
const pause = 5 * time.Millisecond
