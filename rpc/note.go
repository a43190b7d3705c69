// SPDX-License-Identifier: Apache-2.0

package rpc

import "time"

// onNote says who takes the notes of a subject. Notes are messages without an
// answer: they arrive at most once, and those of one connection in their order. f
// runs where the connection is read and must not wait; body is not its to keep.
func (a *Agent) onNote(subject string, f func(from *Peer, body []byte)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes[subject] = f
}

// note sends one. It does not wait; one that cannot be sent is lost.
func (p *Peer) note(subject string, body []byte) {
	a := p.agent
	send := func() {
		l, err := p.connection(a.ctx, time.Time{})
		if err != nil {
			return
		}
		m := newOutgoing(frameNote, a, p)
		m.enc.Array(2)
		m.enc.Text(subject)
		m.enc.Bytes(body)
		if err := m.finish(l.limit); err != nil {
			m.release(err)
			return
		}
		l.post(m)
	}
	if p.ready() {
		send()
		return
	}
	body = append([]byte(nil), body...)
	a.inBackground(send)
}

// takeNote reads a note: [subject, body].
func (s *serverLink) takeNote(r *received) error {
	d := &r.dec
	n := d.Array()
	subject, body := d.Text(), d.Bytes()
	if d.Err() != nil || n != 2 {
		return protocolError("a note that cannot be read: %v", d.Err())
	}
	s.agent.mu.RLock()
	f := s.agent.notes[string(subject)]
	s.agent.mu.RUnlock()
	if f != nil {
		f(s.peer, body)
	}
	r.release()
	if n := s.conn.Unread(); n > 0 {
		return protocolError("a note with %d bytes behind it", n)
	}
	return nil
}
