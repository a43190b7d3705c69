// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/cohort-ml/cohort/internal/transport"
)

// keepOut is how much room for replies an idle client may keep.
const keepOut = 4 << 10

// replyWriter writes the replies to one client.
//
// A call that waits may be ended by another client's request, which this client's
// connection must not hold up. So replies to waiting calls are queued, and a goroutine
// that lives as long as the queue has some writes them. A client that does not read its
// replies must not fill the server's memory: while many replies are unwritten, no more
// of its requests that wait are taken.
//
// Replies to calls that do not wait are gathered in out, which belongs to the goroutine
// that reads the requests.
type replyWriter struct {
	conn *transport.Conn
	out  []byte

	mu      sync.Mutex
	queue   []answer
	unsent  int        // replies queued, or being written
	load    int        // bytes of their values
	written *sync.Cond // on mu: unsent and load have become less
	writing bool
	running sync.WaitGroup
}

const (
	// maxUnsent bounds the replies that wait to be written to a client when it
	// makes another request that waits, maxLoad the bytes of their values. Replies
	// of requests that wait already, maxWaiting of them, may come on top.
	maxUnsent = 4 << 10
	maxLoad   = 2 * MaxValue
)

func newReplyWriter(c *transport.Conn) *replyWriter {
	p := &replyWriter{conn: c}
	p.written = sync.NewCond(&p.mu)
	return p
}

// awaitRoom waits until there are few unwritten replies.
func (p *replyWriter) awaitRoom() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unsent >= maxUnsent || p.load >= maxLoad {
		p.written.Wait()
	}
}

// load returns the bytes of a reply's values.
func (r *reply) load() int {
	n := len(r.value)
	for _, v := range r.values {
		n += len(v)
	}
	return n
}

func (p *replyWriter) wake(id uint64, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsent++
	p.load += r.load()
	p.queue = append(p.queue, answer{call{id: id}, r})
	if !p.writing {
		p.writing = true
		p.running.Add(1)
		go p.write()
	}
}

func (p *replyWriter) write() {
	defer p.running.Done()
	var out []byte
	for {
		p.mu.Lock()
		batch := p.queue
		p.queue = nil
		if len(batch) == 0 {
			p.writing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		var err error
		for i := range batch {
			if out, err = p.gather(out, batch[i].id, &batch[i].reply); err != nil {
				break
			}
		}
		if err == nil && len(out) > 0 {
			_, err = p.conn.Write(out)
			out = out[:0]
		}
		if err != nil {
			// The reader finds the connection broken too, and ends the client.
			p.conn.Close()
		}
		p.mu.Lock()
		p.unsent -= len(batch)
		for i := range batch {
			p.load -= batch[i].load()
		}
		p.written.Broadcast()
		p.mu.Unlock()
	}
}

// reply gathers a reply.
func (p *replyWriter) reply(id uint64, r *reply) (err error) {
	p.out, err = p.gather(p.out, id, r)
	return err
}

// flush writes the gathered replies.
func (p *replyWriter) flush() error {
	_, err := p.conn.Write(p.out)
	p.out = p.out[:0]
	if cap(p.out) > keepOut {
		p.out = nil // thousands of clients may have had much to say once
	}
	return err
}

// gather appends a reply's frame to out, or writes both when they are long.
func (p *replyWriter) gather(out []byte, id uint64, r *reply) ([]byte, error) {
	if len(r.value) <= gatherLimit && len(r.values) == 0 && len(r.missing) == 0 {
		begin := len(out)
		out = append(out, make([]byte, transport.HeaderSize)...)
		out, tail := appendReply(out, id, r)
		out = append(out, tail...)
		transport.PutHeader(out[begin:], byte(r.status), len(out)-begin-transport.HeaderSize)
		if len(out) <= gatherLimit {
			return out, nil
		}
		_, err := p.conn.Write(out)
		return out[:0], err
	}
	if len(out) > 0 {
		if _, err := p.conn.Write(out); err != nil {
			return nil, err
		}
	}
	head, tail := appendReply(nil, id, r)
	return out[:0], p.conn.WriteFrame(byte(r.status), head, tail)
}
