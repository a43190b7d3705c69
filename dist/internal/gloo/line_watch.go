// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
)

const (
	// goneAfter is for how long a host may answer nothing before it counts as gone, and
	// lookPeriod how often that is looked at.
	goneAfter  = 30 * time.Second
	lookPeriod = 5 * time.Second
)

// watchLines ends the connections with hosts that have gone without a word, until the
// group has ended. Nothing on this wire asks whether a peer is there. The system does so
// by itself on a connection at rest (keepAlive), but goes on for a quarter of an hour
// where bytes are on their way.
func (b *Communicator) watchLines() {
	defer b.running.Done()
	tick := time.NewTicker(lookPeriod)
	defer tick.Stop()
	for {
		select {
		case <-b.failed:
			return
		case <-tick.C:
		}
		for _, x := range b.contexts {
			for _, p := range x.pairs {
				if p != nil {
					p.checkLine()
				}
			}
		}
	}
}

// checkLine ends the connection if the peer's host has gone.
func (p *pair) checkLine() {
	p.mu.Lock()
	conn := p.conn
	if p.lost != nil {
		conn = nil
	}
	p.mu.Unlock()
	if conn == nil {
		return
	}
	if silent := p.line.Unanswered(conn); silent >= goneAfter {
		p.b.lose(p, &fault.SilentError{Text: fmt.Sprintf("for %v: its host does not answer", silent.Round(time.Second))})
	}
}
