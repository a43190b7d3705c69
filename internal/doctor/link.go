// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	dialFor    = 2 * time.Second // of one address
	talkFor    = 2 * time.Second // of a message and its answer
	largeBytes = 64 << 10        // of a message that does not fit one packet of any MTU
	sendMost   = 2 * time.Second // of a measurement
	atOnce     = 32              // connections that a host makes at the same time
	againOnce  = 4               // the same, when what has failed is tried again
	againMost  = 32              // peers that are tried again
	patience   = 5 * time.Second // for a message and its answer, when it is tried again
	cookieLen  = 32              // bytes of a cookie
	maxStreams = 4096            // connections that a host serves at the same time
)

// Network is what a host connects by.
type Network interface {
	// Listen listens at a port of all addresses that the system chooses.
	Listen() (net.Listener, error)
	Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	LookUp(ctx context.Context, name string) Lookup
}

// System is the network of this host.
type System struct{}

// Listen listens at all addresses.
func (System) Listen() (net.Listener, error) { return net.Listen("tcp", ":0") }

// Dial connects by TCP.
func (System) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
}

// LookUp asks the system where a name leads.
func (System) LookUp(ctx context.Context, name string) Lookup { return lookUp(ctx, name) }

// Peer is another host, as a host looks for it.
type Peer struct {
	Index  int          `json:"index"`
	Name   string       `json:"name"`
	Addrs  []netip.Addr `json:"addrs"`
	Port   int          `json:"port"`
	Cookie string       `json:"cookie"` // that only this host knows
}

// Reached says how a connection to a peer went.
type Reached struct {
	Index  int        `json:"index"`
	Addr   netip.Addr `json:"addr"` // that was tried last, or answered
	Kind   Reach      `json:"kind"`
	Error  string     `json:"error,omitempty"`
	Micros float64    `json:"micros,omitempty"` // the shortest of some round trips
	Large  string     `json:"large,omitempty"`  // why a large message did not come through
	Lookup *Lookup    `json:"lookup,omitempty"` // of the peer's name
}

// Reach is how a connection went.
type Reach string

// The ways in which a connection goes.
const (
	OK        Reach = "ok"
	TimedOut  Reach = "timed out"  // nobody answered
	Refused   Reach = "refused"    // somebody refuses
	NoRoute   Reach = "no route"   // a host or router says that there is no way, or that it is forbidden
	WrongHost Reach = "wrong host" // another host has the address
	Failed    Reach = "failed"     // anything else
)

// links serves the connections of other hosts.
type links struct {
	l      net.Listener
	cookie string
	open   sync.WaitGroup
	slots  chan struct{}
	ctx    context.Context
	stop   context.CancelFunc
}

func serveLinks(l net.Listener, cookie string) *links {
	s := &links{l: l, cookie: cookie, slots: make(chan struct{}, maxStreams)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case s.slots <- struct{}{}:
				s.open.Go(func() {
					end := context.AfterFunc(s.ctx, func() { c.Close() })
					s.serve(c)
					end()
					c.Close()
					<-s.slots
				})
			default:
				c.Close()
			}
		}
	})
	return s
}

// close ends all connections.
func (s *links) close() {
	s.l.Close()
	s.stop()
	s.open.Wait()
}

// serve answers one connection. Who does not know the cookie gets no answer.
func (s *links) serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(2*patience + sendMost))
	head := make([]byte, cookieLen+1)
	if _, err := io.ReadFull(c, head); err != nil || subtle.ConstantTimeCompare(head[:cookieLen], []byte(s.cookie)) != 1 {
		return
	}
	if _, err := c.Write([]byte("k")); err != nil {
		return
	}
	switch head[cookieLen] {
	case 'e': // echo
		b := make([]byte, 1)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	case 'l': // a large message in each direction
		b := make([]byte, largeBytes)
		if _, err := io.ReadFull(c, b); err == nil {
			_, _ = c.Write(b)
		}
	case 'd': // data, for as many milliseconds as the next byte says
		b := make([]byte, 1+largeBytes)
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return
		}
		until := time.Now().Add(time.Duration(b[0]) * time.Millisecond)
		for b[0] = 1; time.Now().Before(until); {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
		_, _ = c.Write([]byte{0})
	}
}

// connect connects to an address of a peer for a purpose.
func connect(ctx context.Context, n Network, p *Peer, a netip.Addr, purpose byte, wait time.Duration) (net.Conn, Reach, error) {
	ctx, cancel := context.WithTimeout(ctx, dialFor)
	defer cancel()
	c, err := n.Dial(ctx, netip.AddrPortFrom(a, uint16(p.Port)))
	if err != nil {
		return nil, kindOf(err), err
	}
	_ = c.SetDeadline(time.Now().Add(wait))
	answer := make([]byte, 1)
	_, err = c.Write(append([]byte(p.Cookie), purpose))
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err != nil || answer[0] != 'k' {
		c.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, TimedOut, errors.New("a connection was made, and no data came through")
		}
		return nil, WrongHost, errors.New("another host or program answers there")
	}
	return c, OK, nil
}

func kindOf(err error) Reach {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return TimedOut
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return Refused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return NoRoute
	}
	return Failed
}

// reachAll tries all peers. large says whether large messages are tried too.
func reachAll(ctx context.Context, n Network, self *Facts, peers []Peer, large map[int]bool) []Reached {
	out := make([]Reached, len(peers))
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range peers {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			out[i] = reach(ctx, n, self, &peers[i], large[peers[i].Index], talkFor)
		})
	}
	all.Wait()
	// Where many connect at the same time, one that fails may be late and not lost.
	again := 0
	slots = make(chan struct{}, againOnce)
	for i := range peers {
		if out[i].Kind == OK && out[i].Large == "" || again == againMost {
			continue
		}
		again++
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			out[i] = reach(ctx, n, self, &peers[i], large[peers[i].Index], patience)
		})
	}
	all.Wait()
	return out
}

// reach tries the addresses of a peer until one answers.
func reach(ctx context.Context, n Network, self *Facts, p *Peer, large bool, wait time.Duration) Reached {
	r := Reached{Index: p.Index, Kind: Failed, Error: "the host has no address that others could reach"}
	addrs := p.Addrs
	if a, err := netip.ParseAddr(p.Name); err == nil {
		addrs = append([]netip.Addr{a}, addrs...)
	} else if p.Name != "" {
		l := n.LookUp(ctx, p.Name)
		r.Lookup = &l
	}
	for _, a := range near(self, addrs) {
		c, kind, err := connect(ctx, n, p, a, 'e', wait)
		r.Addr, r.Kind, r.Error = a, kind, ""
		if err != nil {
			r.Error = err.Error()
			continue
		}
		r.Micros = float64(roundTrip(c).Nanoseconds()) / 1e3
		c.Close()
		if large {
			r.Large = tryLarge(ctx, n, p, a, wait)
		}
		break
	}
	return r
}

// near orders addresses: those of networks that this host is in come first, each once.
func near(self *Facts, addrs []netip.Addr) (out []netip.Addr) {
	local := func(a netip.Addr) bool {
		return slices.ContainsFunc(self.Interfaces, func(i Interface) bool {
			return !i.Loopback && slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Contains(a) })
		})
	}
	for _, first := range []bool{true, false} {
		for _, a := range addrs {
			if local(a) == first && !a.IsLoopback() && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	const most = 4
	return out[:min(most, len(out))]
}

// roundTrip returns the shortest of three round trips, 0 if there was none.
func roundTrip(c net.Conn) (least time.Duration) {
	b := []byte{1}
	for range 3 {
		begin := time.Now()
		if _, err := c.Write(b); err != nil {
			break
		}
		if _, err := io.ReadFull(c, b); err != nil {
			break
		}
		if took := time.Since(begin); least == 0 || took < least {
			least = took
		}
	}
	return least
}

// tryLarge sends and receives a large message, and returns why it did not come through.
func tryLarge(ctx context.Context, n Network, p *Peer, a netip.Addr, wait time.Duration) string {
	c, _, err := connect(ctx, n, p, a, 'l', wait)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	b := make([]byte, largeBytes)
	if _, err = c.Write(b); err == nil {
		_, err = io.ReadFull(c, b)
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer within " + wait.String()
	}
	return err.Error()
}

// download receives data from a peer for some milliseconds, and returns bytes a second.
func download(ctx context.Context, n Network, p *Peer, a netip.Addr, millis int) (float64, error) {
	c, _, err := connect(ctx, n, p, a, 'd', talkFor)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(sendMost))
	begin := time.Now()
	if _, err := c.Write([]byte{byte(min(millis, 250))}); err != nil {
		return 0, err
	}
	b, received := make([]byte, 1+largeBytes), 0
	for ctx.Err() == nil {
		n, err := c.Read(b)
		received += n
		if err != nil {
			if received == 0 || !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "reset") {
				return 0, err
			}
			break
		}
	}
	return float64(received) / time.Since(begin).Seconds(), nil
}
