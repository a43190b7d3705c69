// SPDX-License-Identifier: Apache-2.0

package rpc

import "time"

// onNote says who takes the notes of a subject. Notes are messages without an
// answer: they arrive at most once, and those of one connection in their order. f
// runs where the connection is read and must not wait; body is not its to keep.
func (a *Agent) onNote(subject string, f func(from *serverLink, body []byte)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes[subject] = f
}

// maxWaitingNotes is how many notes wait for a connection; more are lost.
const maxWaitingNotes = 256

// waitingNotes are those that wait for a peer's connection, and whether a goroutine
// waits with them. There is one, however long the peer is not there.
type waitingNotes struct {
	list []waitingNote
	told bool
}

type waitingNote struct {
	subject string
	body    []byte
}

// note sends one. It does not wait; one that cannot be sent is lost.
func (p *Peer) note(subject string, body []byte) {
	if p.ready() {
		if l := p.link.Load(); l != nil {
			l.note(subject, body)
		}
		return
	}
	p.mu.Lock()
	if len(p.notes.list) < maxWaitingNotes {
		p.notes.list = append(p.notes.list, waitingNote{subject, append([]byte(nil), body...)})
	}
	told := p.notes.told
	p.notes.told = true
	p.mu.Unlock()
	if !told {
		p.agent.inBackground(p.sendNotes)
	}
}

// sendNotes sends what waits for the connection.
func (p *Peer) sendNotes() {
	l, err := p.connection(p.agent.ctx, time.Time{})
	p.mu.Lock()
	list := p.notes.list
	p.notes = waitingNotes{}
	p.mu.Unlock()
	if err != nil {
		return
	}
	for _, n := range list {
		l.note(n.subject, n.body)
	}
}

func (l *link) note(subject string, body []byte) {
	m := newOutgoing(frameNote, l.agent, l.peer)
	m.enc.Array(2)
	m.enc.Text(subject)
	m.enc.Bytes(body)
	if err := m.finish(l.limit); err != nil {
		m.release(err)
		return
	}
	l.post(m)
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
		f(s, body)
	}
	r.release()
	if n := s.conn.Unread(); n > 0 {
		return protocolError("a note with %d bytes behind it", n)
	}
	return nil
}
