// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"sync"
)

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

// parking counts calls that are answered later.
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

// park counts a call that may be answered later, until it has been answered.
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
		Msg: fmt.Sprintf("calls of %s wait for later answers here: %d, or %d bytes of them, may", of, limit*maxParked, limit*maxParkedBytes)}
}

// unpark ends what park began.
func (in *incoming) unpark() {
	if in.parked {
		in.caller.parked.leave(in.size)
		in.agent.parked.leave(in.size)
	}
}
