// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// reads takes connections of any listener, such as one of a network inside the
// process, and has a goroutine read each.
type reads struct {
	l       *Lobby
	mu      sync.Mutex
	in      *visitors
	out     bool // nobody comes in any more
	running sync.WaitGroup
}

func reading(l *Lobby) driver {
	r := &reads{l: l, in: newVisitors()}
	r.running.Add(1)
	return r
}

func (r *reads) stop() {
	r.mu.Lock()
	r.out = true
	for v := r.in.oldest(); v != nil; v = r.in.oldest() {
		r.in.leave(v)
		v.nc.Close()
	}
	r.mu.Unlock()
	r.l.err = r.l.ln.Close()
	r.running.Wait()
}

func (r *reads) run() {
	defer r.running.Done()
	for {
		nc, err := r.l.ln.Accept()
		if err == nil {
			r.take(nc)
			continue
		}
		if r.l.ended() || errors.Is(err, net.ErrClosed) {
			return
		}
		r.mu.Lock() // other than by Close, it fails for want of descriptors or memory
		v := r.in.next()
		r.mu.Unlock()
		if v == nil {
			time.Sleep(pause)
			continue
		}
		r.turnOut(v)
	}
}

func (r *reads) take(nc net.Conn) {
	from := SourceOf(nc)
	if admit := r.l.Admit; admit != nil {
		if why := admit(from); why != nil {
			r.l.refuse(from, why)
			nc.Close()
			return
		}
	}
	v := &visitor{nc: nc}
	v.need, _ = r.l.Judge(nil)
	r.mu.Lock()
	if r.out {
		r.mu.Unlock()
		nc.Close()
		return
	}
	var last *visitor
	if r.l.crowded(r.in.num) {
		last = r.in.next()
	}
	r.in.enter(v, from)
	r.l.count(r.in)
	r.running.Add(1)
	r.mu.Unlock()
	if last != nil {
		r.turnOut(last)
	}
	go r.listen(v)
}

// turnOut makes room.
func (r *reads) turnOut(v *visitor) {
	r.mu.Lock()
	was := !v.gone
	r.in.leave(v)
	r.mu.Unlock()
	if was {
		r.l.refuse(v.from.Source, ErrCrowded)
		v.nc.Close()
	}
}

// listen reads what a connection says.
func (r *reads) listen(v *visitor) {
	defer r.running.Done()
	v.nc.SetReadDeadline(time.Now().Add(r.l.Patience))
	buf := make([]byte, 512)
	var why error
	for v.need > 0 && why == nil {
		n, err := v.nc.Read(buf[:min(v.need-len(v.said), len(buf))])
		if n > 0 {
			v.said = append(v.said, buf[:n]...)
			v.need, why = r.l.Judge(v.said)
			continue
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && len(v.said) > 0:
			why = ErrSlow
		case len(v.said) == 0:
			why = ErrSilent
		case err != nil:
			why = ErrCut
		}
	}
	r.mu.Lock()
	was := !v.gone
	r.in.leave(v)
	r.mu.Unlock()
	switch {
	case !was: // turned out meanwhile
		v.nc.Close()
	case why != nil:
		r.l.refuse(v.from.Source, why)
		v.nc.Close()
	default:
		v.nc.SetReadDeadline(time.Time{})
		r.l.Enter(v.nc, v.from.Source, v.said)
	}
}
