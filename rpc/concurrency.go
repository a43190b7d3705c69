// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

const (
	// maxQueued is how many calls wait for a handler at most, and maxQueuedBytes how
	// many bytes their requests have.
	maxQueued      = 1 << 18
	maxQueuedBytes = 8 << 30
)

// gate bounds how many calls run at once. Other calls wait in the order in which they
// came.
type gate struct {
	limit int

	mu      sync.Mutex
	running int
	queue   []*incoming
	first   int // of queue
	bytes   int // of those in queue
}

// enter says whether a call may run now. If not, the call is in the queue, unless the
// queue is full.
func (g *gate) enter(in *incoming) (now, full bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < g.limit {
		g.running++
		return true, false
	}
	if n := len(g.queue) - g.first; n >= maxQueued || n > 0 && in.size > maxQueuedBytes-g.bytes {
		return false, true
	}
	g.bytes += in.size
	g.queue = append(g.queue, in)
	return false, false
}

// next ends the turn of a call, and returns the call that has the turn now, nil if none
// waits.
func (g *gate) next() *incoming {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first == len(g.queue) {
		g.running--
		return nil
	}
	in := g.queue[g.first]
	g.bytes -= in.size
	g.queue[g.first] = nil
	if g.first++; g.first == len(g.queue) {
		g.queue, g.first = g.queue[:0], 0
	}
	return in
}

// queue runs a call, now or when its turn comes.
func (in *incoming) queue() {
	g := in.method.gate
	if g == nil {
		g = &in.agent.gate
	}
	now, full := g.enter(in)
	switch {
	case full:
		in.refuse(&Error{Kind: KindBusy, Method: in.method.name, Rank: -1, Msg: fmt.Sprintf("%d calls wait for their turn already, or %d bytes of requests", maxQueued, maxQueuedBytes)})
	case now:
		go g.runAll(in)
	}
}

// runAll runs a call, and then those that wait for its turn.
func (g *gate) runAll(in *incoming) {
	defer func() {
		if in != nil { // its handler took the goroutine with it
			in.fail(recover())
			if in = g.next(); in != nil {
				go g.runAll(in)
			}
		}
	}()
	in.method.run(in)
	for in = g.next(); in != nil; in = g.next() {
		if err := in.own.Err(); err != nil { // while it was in the queue
			kind := KindTimeout
			if errors.Is(err, context.Canceled) {
				kind = KindCanceled
			}
			in.refuse(&Error{Method: in.method.name, Rank: -1, Kind: kind, Msg: "the call ended before its turn came: " + err.Error(), err: err})
			continue
		}
		in.method.run(in)
	}
}

const (
	// maxParked is how many calls of a peer may be under way that take up no place
	// among the running handlers: those that [ServeAsync] answers later, and those for
	// the values of references that have not been made. maxParkedBytes bounds the
	// requests of these calls, of one peer and of all.
	maxParked      = 1 << 14
	maxParkedBytes = 8 << 30
	// All peers together have this many times as much.
	parkedPeers = 16
)

// parking counts calls that are answered later: by a future, or when the value of a
// reference has been made.
type parking struct {
	mu    sync.Mutex
	n     int
	bytes int
}

// enter counts one of a size, unless there are limit times as many as a peer may have.
// The first one may be of any size.
func (p *parking) enter(size, limit int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n >= limit*maxParked || p.n > 0 && size > limit*maxParkedBytes-p.bytes {
		return false
	}
	p.n++
	p.bytes += size
	return true
}

func (p *parking) leave(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n--
	p.bytes -= size
}

// park counts a call that may be answered later.
func (in *incoming) park() error {
	if in.method.hidden {
		return nil // they are as many as there are agents
	}
	if !in.caller.parked.enter(in.size, 1) {
		return in.tooMany(1, "this peer")
	}
	if !in.agent.parked.enter(in.size, parkedPeers) {
		in.caller.parked.leave(in.size)
		return in.tooMany(parkedPeers, "all peers")
	}
	in.parked = true
	return nil
}

func (in *incoming) tooMany(limit int, of string) error {
	return &Error{Method: in.method.name, Rank: -1, Kind: KindBusy,
		Msg: fmt.Sprintf("too many calls of %s wait for later answers here: at most %d, with at most %d bytes of requests", of, limit*maxParked, limit*maxParkedBytes)}
}

// unpark ends what park began.
func (in *incoming) unpark() {
	if in.parked {
		in.caller.parked.leave(in.size)
		in.agent.parked.leave(in.size)
	}
}
