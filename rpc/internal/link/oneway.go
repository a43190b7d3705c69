// SPDX-License-Identifier: Apache-2.0

package link

import (
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/wire"
)

// maxWaitingNotes is how many notes wait for a connection; more are lost.
const maxWaitingNotes = 256

// waitingNotes are the notes that wait for a peer's connection. sending says that a
// goroutine waits with them: one, for as long as the peer is not there.
type waitingNotes struct {
	list    []waitingNote
	sending bool
}

type waitingNote struct {
	subject string
	body    []byte
}

// OnNote says who takes the notes of a subject. Notes are one-way messages: they have no
// answer and arrive at most once, and the notes of one connection arrive in their order. f
// runs where the connection is read: it must not wait, and must not keep body.
func (e *Endpoint) OnNote(subject string, f func(from *ServerConn, body []byte)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes[subject] = f
}

// Note sends a note. It does not wait; a note that cannot be sent is lost.
func (p *Peer) Note(subject string, body []byte) {
	if c := p.conn.Load(); c != nil {
		c.note(subject, body)
		return
	}
	p.mu.Lock()
	if len(p.notes.list) < maxWaitingNotes {
		p.notes.list = append(p.notes.list, waitingNote{subject, append([]byte(nil), body...)})
	}
	sending := p.notes.sending
	p.notes.sending = true
	p.mu.Unlock()
	if !sending {
		p.end.Go(p.sendNotes)
	}
}

// sendNotes sends the notes that wait for the connection.
func (p *Peer) sendNotes() {
	c, err := p.Connect(p.end.Context, time.Time{})
	p.mu.Lock()
	list := p.notes.list
	p.notes = waitingNotes{}
	p.mu.Unlock()
	if err != nil {
		return
	}
	for _, n := range list {
		c.note(n.subject, n.body)
	}
}

func (c *ClientConn) note(subject string, body []byte) {
	m := wire.New(wire.FrameNote, nil)
	m.Enc.Array(2)
	m.Enc.Text(subject)
	m.Enc.Bytes(body)
	if err := m.Finish(c.Limit); err != nil {
		m.Release(err)
		return
	}
	c.post(m)
}

// takeNote reads a note: [subject, body].
func (s *ServerConn) takeNote(r *wire.Received) error {
	d := &r.Dec
	n := d.Array()
	subject, body := d.Text(), d.Bytes()
	if d.Err() != nil || n != 2 {
		return wire.Protocolf("a note that cannot be read: %v", d.Err())
	}
	s.end.mu.RLock()
	f := s.end.notes[string(subject)]
	s.end.mu.RUnlock()
	if f != nil {
		f(s, body)
	}
	r.Release()
	if n := s.conn.Unread(); n > 0 {
		return wire.Protocolf("a note with %d bytes behind it", n)
	}
	return nil
}
