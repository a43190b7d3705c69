// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"net"
	"time"
)

const (
	// smallBytes is up to how many bytes are copied to be written with their
	// neighbours, stageBytes how many so in one write, maxRuns how many runs of
	// memory one write takes.
	smallBytes = 1 << 10
	stageBytes = 8 << 10
	maxRuns    = 8
	// directBytes is how much whoever has something to say writes himself; more is
	// the writer's, while he goes on.
	directBytes = 64 << 10
)

// outgoing is bytes to be written, and the operation that is done then.
type outgoing struct {
	data []byte
	op   *op
}

// outbox is what is to be written to a connection. The pair's lock guards it; at any
// time one goroutine at most writes.
type outbox struct {
	queue   fifo[outgoing]
	bytes   int
	writing bool
	kick    chan struct{} // to the writer; closed when the connection is lost
	gather  *gatherer     // nil where a connection has none
	stage   []byte        // whose writes it is
	runs    [][]byte
}

func (x *outbox) over(conn net.Conn) {
	x.gather = newGatherer(conn)
	x.stage, x.runs = make([]byte, 0, stageBytes), make([][]byte, 0, maxRuns)
}

func (x *outbox) add(data []byte, o *op) {
	x.queue.push(outgoing{data, o})
	x.bytes += len(data)
}

// next returns what to write next, as few runs of memory.
func (x *outbox) next() [][]byte {
	x.stage, x.runs = x.stage[:0], x.runs[:0]
	first := 0 // of the staged run that is being made
	for _, o := range x.queue.items[x.queue.head:] {
		if len(x.runs) >= maxRuns-1 {
			break
		}
		if len(o.data) <= smallBytes {
			if len(x.stage)+len(o.data) > stageBytes {
				break
			}
			x.stage = append(x.stage, o.data...)
			continue
		}
		if len(x.stage) > first {
			x.runs = append(x.runs, x.stage[first:])
			first = len(x.stage)
		}
		if raceEnabled {
			// What was written may be received over as soon as it has been: the race
			// detector has the system call read it until it returns.
			x.runs = append(x.runs, bytes.Clone(o.data))
			continue
		}
		x.runs = append(x.runs, o.data)
	}
	if len(x.stage) > first {
		x.runs = append(x.runs, x.stage[first:])
	}
	return x.runs
}

// wrote takes n bytes as written.
func (x *outbox) wrote(n int) {
	x.bytes -= n
	for n > 0 {
		first := &x.queue.items[x.queue.head]
		if n < len(first.data) {
			first.data = first.data[n:]
			return
		}
		n -= len(first.data)
		if o := x.queue.pop(); o.op != nil {
			o.op.went()
		}
	}
}

// drop forgets all that is not written.
func (x *outbox) drop(err error) {
	for x.queue.len() > 0 {
		if o := x.queue.pop(); o.op != nil {
			o.op.end(err)
		}
	}
	x.bytes = 0
}

// flush writes what is to be written, as far as that needs no waiting; the writer
// does the rest.
func (p *pair) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := &p.out
	if x.writing || x.queue.len() == 0 || p.conn == nil || p.lost != nil {
		return
	}
	x.writing = true // so kick has room, and is not closed before the writer knows
	if x.gather != nil && x.bytes <= directBytes && !p.writeSome(p.conn, false) {
		x.writing = false
		return
	}
	x.kick <- struct{}{}
}

// partPatience is how long a rank that ends the group waits for what it has to say.
const partPatience = 250 * time.Millisecond

// part writes what is to be written to a peer whose call differs, before the connection
// ends: what this rank has room for shows the peer so too.
func (p *pair) part() {
	p.flush()
	for end := time.Now().Add(partPatience); p.unsaid() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// unsaid reports whether there is something to be written, or being written.
func (p *pair) unsaid() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost == nil && p.conn != nil && (p.out.writing || p.out.queue.len() > 0)
}

// writeAll is the writer.
func (p *pair) writeAll(conn net.Conn) {
	defer p.b.running.Done()
	for range p.out.kick {
		p.mu.Lock()
		p.writeSome(conn, true)
		p.out.writing = false
		p.mu.Unlock()
	}
}

// writeSome writes until there is no more, or, unless it is to wait, the connection
// takes no more for now: then it reports true. The pair is locked, but not
// meanwhile.
func (p *pair) writeSome(conn net.Conn, wait bool) (more bool) {
	x := &p.out
	for p.lost == nil && x.queue.len() > 0 {
		runs := x.next()
		gather := x.gather
		p.mu.Unlock()
		var n int
		var err error
		if gather != nil {
			n, err = gather.write(runs, wait)
		} else {
			for _, run := range runs {
				var k int
				k, err = conn.Write(run)
				if n += k; err != nil {
					break
				}
			}
		}
		if err != nil {
			p.b.lose(p, err)
		}
		p.mu.Lock()
		x.wrote(n)
		if n == 0 && p.lost == nil {
			return true
		}
	}
	if p.lost != nil {
		x.drop(p.lost)
	}
	return false
}
