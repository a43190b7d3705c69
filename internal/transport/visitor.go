// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"container/list"
	"fmt"
	"net"
	"os"
)

// visitor is a connection that is inside the handshake.
type visitor struct {
	nc   net.Conn
	from string // where it comes from: a host, or a user of this one
	// proven says that its first words prove the token, evicted that it was
	// closed to make room. Both belong to the lobby's lock.
	proven, evicted bool
}

// lobby are the visitors of a port, of whom there are at most most. When one
// more comes, one of the source with the most visitors goes: the oldest that
// has proven nothing yet. So strangers push out strangers, then what comes from
// their own host, and members elsewhere do not feel them.
type lobby struct {
	most     int
	visitors *list.List // of *visitor, oldest first
	from     map[string]int
}

func newLobby(most int) lobby {
	return lobby{most: most, visitors: list.New(), from: map[string]int{}}
}

// enter adds a visitor, and makes room for it if need be.
func (l *lobby) enter(v *visitor) *list.Element {
	if l.visitors.Len() >= l.most {
		l.evict()
	}
	l.from[v.from]++
	return l.visitors.PushBack(v)
}

// leave takes a visitor out, unless it has been evicted.
func (l *lobby) leave(place *list.Element) {
	if !place.Value.(*visitor).evicted {
		l.remove(place)
	}
}

func (l *lobby) remove(place *list.Element) {
	v := l.visitors.Remove(place).(*visitor)
	if l.from[v.from]--; l.from[v.from] == 0 {
		delete(l.from, v.from)
	}
}

// evict closes a visitor's connection.
func (l *lobby) evict() {
	var source string
	for from, n := range l.from {
		if n > l.from[source] || n == l.from[source] && from < source {
			source = from
		}
	}
	var out *list.Element
	for e := l.visitors.Front(); e != nil; e = e.Next() {
		v := e.Value.(*visitor)
		if v.from != source {
			continue
		}
		if !v.proven {
			out = e
			break
		}
		if out == nil {
			out = e
		}
	}
	if out == nil {
		return
	}
	l.remove(out)
	v := out.Value.(*visitor)
	v.evicted = true
	v.nc.Close()
}

// closeAll ends all handshakes.
func (l *lobby) closeAll() {
	for e := l.visitors.Front(); e != nil; e = e.Next() {
		e.Value.(*visitor).nc.Close()
	}
}

// nobodyKnown is the number of a user of whom no number is known here, as of
// one in a container.
const nobodyKnown = 65534

// sourceOf returns where a connection comes from, without its port, and whether
// it is another user of this host, who can be no member: a job is one user's.
func sourceOf(nc net.Conn) (from string, foreign bool) {
	if tcp, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.IP.String(), false
	}
	uid, ok := peerUser(nc)
	if !ok {
		return "this host", false
	}
	return fmt.Sprintf("user %d of this host", uid), uid != 0 && uid != nobodyKnown && uid != os.Geteuid()
}
