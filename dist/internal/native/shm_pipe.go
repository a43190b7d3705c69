// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// directLimit is the size from which the receiver copies a message straight from the sender's
// memory, if it can reach it, instead of through the slots.
const directLimit = 64 << 10

// pipe carries messages, or the pieces of plans, from one rank to another through a ring of slots
// in shared memory. The sender and the receiver each have their own view of it.
type pipe struct {
	block *pipeBlock
	count uint32 // slots that this side has filled or emptied
	close func() error
}

// pipeKey is a pipe as a rank sees it.
type pipeKey struct {
	peer     int
	outgoing bool
	use      pipeUse
}

// pipeUse is what a pipe carries. Messages run beside collectives, so each of the two has pipes
// of its own. The numbers travel between ranks.
type pipeUse uint8

const (
	pipeMessages pipeUse = iota
	pipeCollectives
	numPipeUses
)

// pipes are a rank's pipes, opened on first use.
type pipes struct {
	mu   sync.Mutex
	byID map[pipeKey]*pipe
	// open makes the pipe to a peer, or waits for the one from a peer.
	open func(ctx context.Context, c *operation.Call, key pipeKey) (*pipe, error)
	// opened returns the pipe that a peer has made to this rank, nil if there is none yet.
	opened func(key pipeKey) *pipe
}

// has returns a pipe, nil if there is none yet.
func (ps *pipes) has(key pipeKey) *pipe {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byID[key]
	if p == nil {
		if p = ps.opened(key); p != nil {
			ps.add(key, p)
		}
	}
	return p
}

// add adds a pipe; the pipes are locked.
func (ps *pipes) add(key pipeKey, p *pipe) {
	if ps.byID == nil {
		ps.byID = map[pipeKey]*pipe{}
	}
	ps.byID[key] = p
}

func (ps *pipes) get(ctx context.Context, c *operation.Call, key pipeKey) (*pipe, error) {
	ps.mu.Lock()
	p := ps.byID[key]
	ps.mu.Unlock()
	if p != nil {
		return p, nil
	}
	// Only one goroutine at a time sends to, or receives from, a peer.
	p, err := ps.open(ctx, c, key)
	if err != nil {
		return nil, err
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.add(key, p)
	return p, nil
}

// wakeAll wakes all that sleep at a pipe of this rank, on both sides.
func (ps *pipes) wakeAll(park parking) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.byID {
		park.wake(&p.block.sent)
		park.wake(&p.block.taken)
	}
}

func (ps *pipes) closeAll() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var err error
	for _, p := range ps.byID {
		if p.close != nil {
			if cerr := p.close(); err == nil {
				err = cerr
			}
		}
	}
	ps.byID = nil
	return err
}

// prepare implements [link]. Pipes are opened when they are first used: the peer answers however
// far its program has come.
func (s *Shm) prepare(_ context.Context, c *operation.Call, p *collective.Plan) (release func(), fits bool, err error) {
	c.Start() // the limit of both goroutines
	// Pipes are empty: the call before has ended on all ranks.
	return func() {}, len(p.Sends) <= numSlots, nil
}

// sendPiece implements [link].
func (s *Shm) sendPiece(ctx context.Context, c *operation.Call, to int, data []byte) error {
	p, err := s.pipes.get(ctx, c, pipeKey{to, true, pipeCollectives})
	if err != nil {
		return err
	}
	slot, err := s.emptySlot(ctx, c, p, to)
	if err != nil {
		return err
	}
	rec := &p.block.records[slot]
	rec.fill(c)
	rec.seq = c.Seq
	rec.size = uint64(copy(p.block.slots[slot][:], data))
	s.gave(len(data))
	sending()
	p.count++
	raise(s.park, &p.block.sent, p.count)
	return nil
}

// emptySlot waits for the next slot of a pipe to a peer to be empty.
func (s *Shm) emptySlot(ctx context.Context, c *operation.Call, p *pipe, peer int) (slot uint32, err error) {
	// For the first slots this is less than zero, which taken has reached.
	err = s.await(ctx, c, peer, &p.block.taken, p.count-numSlots+1)
	return p.count % numSlots, err
}

// recvPiece implements [link]. It reduces from the slot.
func (s *Shm) recvPiece(ctx context.Context, c *operation.Call, from, culprit int, into []byte, reduce collective.Reducer) error {
	p, err := s.pipes.get(ctx, c, pipeKey{from, false, pipeCollectives})
	if err != nil {
		return err
	}
	if err := s.await(ctx, c, from, &p.block.sent, p.count+1); err != nil {
		var late *fault.TimeoutError
		if errors.As(err, &late) {
			late.Missing = []fault.Member{s.cfg.Members[culprit]}
		}
		return err
	}
	received()
	slot := p.count % numSlots
	rec := p.block.records[slot] // read once: it is the peer's memory
	if there := rec.call(rec.seq); !c.Matches(&there) {
		return s.mismatch(c, from, there)
	} else if want, own := c.Wants(s.cfg.Members[from].Rank); own && there.Count != want {
		return parcelError(s.mismatch(c, from, there), there.Count, want)
	}
	if size := rec.size; size != uint64(len(into)) {
		return fmt.Errorf("dist: %v of group %q: %v sent a piece of %d bytes, want %d",
			c, s.cfg.Group, s.cfg.Members[from], size, len(into))
	}
	data := p.block.slots[slot][:len(into)]
	if reduce != nil {
		reduce(into, data)
	} else {
		copy(into, data)
	}
	p.count++
	raise(s.park, &p.block.taken, p.count)
	return nil
}

// Send implements [backend.Communicator]. It returns when the message lies in the pipe's slots, or
// when the receiver has copied it straight from this rank's memory.
func (s *Shm) Send(ctx context.Context, c operation.Call, data collective.Data) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	if err := s.send(ctx, &c, &data); err != nil {
		err = s.fail(err)
		s.awaitTaken(c.Root)
		return err
	}
	return nil
}

func (s *Shm) send(ctx context.Context, c *operation.Call, data *collective.Data) error {
	p, err := s.pipes.get(ctx, c, pipeKey{c.Root, true, pipeMessages})
	if err != nil {
		return err
	}
	left := data.Bytes()
	var at location
	direct := false
	if len(left) >= directLimit {
		at, direct = s.space.lend(s.cfg.Rank, c, data, false)
	}
	for first := true; first || len(left) > 0; first = false {
		slot, err := s.emptySlot(ctx, c, p, c.Root)
		if err != nil {
			return err
		}
		rec := &p.block.records[slot]
		rec.fill(c)
		rec.seq = c.Seq
		if direct {
			s.gave(len(left))
			rec.ways, rec.in, rec.size, left = inLent, at, 0, nil
		} else {
			n := copy(p.block.slots[slot][:], left)
			s.gave(n)
			rec.size, left = uint64(n), left[n:]
		}
		p.count++
		raise(s.park, &p.block.sent, p.count)
		ring(s.park, &s.seg.block(c.Root).bell)
	}
	if direct {
		return s.await(ctx, c, c.Root, &p.block.taken, p.count)
	}
	return nil
}

// Recv implements [backend.Communicator].
func (s *Shm) Recv(ctx context.Context, c operation.Call, data collective.Data) error {
	if err := s.usable(&c); err != nil {
		return err
	}
	if err := s.recv(ctx, &c, &data); err != nil {
		return s.fail(err)
	}
	return nil
}

func (s *Shm) recv(ctx context.Context, c *operation.Call, data *collective.Data) error {
	p, err := s.pipes.get(ctx, c, pipeKey{c.Root, false, pipeMessages})
	if err != nil {
		return err
	}
	left := data.Bytes()
	for first := true; first || len(left) > 0; first = false {
		if err := s.await(ctx, c, c.Root, &p.block.sent, p.count+1); err != nil {
			return err
		}
		slot := p.count % numSlots
		rec := p.block.records[slot] // read once: it is the peer's memory
		if first {
			there := rec.call(rec.seq)
			if there.Op != operation.Send || there.Root != s.cfg.Rank || there.DType != c.DType || there.Count != c.Count || there.Seq != c.Seq {
				return s.mismatch(c, c.Root, there)
			}
		}
		if rec.ways&inLent != 0 {
			err := s.takeLent(ctx, c, p, rec.in, left)
			if err != nil {
				if reason := s.unreached(ctx, c, c.Root, err); reason != nil {
					return reason // the peer has died, or left
				}
				return fmt.Errorf("dist: reach the memory of %v: %w", s.cfg.Members[c.Root], err)
			}
			left = nil
		} else {
			if rec.size > slotSize || rec.size > uint64(len(left)) || (rec.size == 0 && len(left) > 0) {
				return fmt.Errorf("dist: %v of group %q: %v sent a piece of %d bytes where %d were left",
					c, s.cfg.Group, s.cfg.Members[c.Root], rec.size, len(left))
			}
			copy(left, p.block.slots[slot][:rec.size])
			left = left[rec.size:]
		}
		p.count++
		raise(s.park, &p.block.taken, p.count)
	}
	return nil
}

// takeLent copies a message straight from the sender's memory.
func (s *Shm) takeLent(ctx context.Context, c *operation.Call, p *pipe, at location, into []byte) error {
	p.block.reading.Store(1)
	defer p.block.reading.Store(0)
	if err := s.mayTouch(c); err != nil {
		return err
	}
	from, err := s.space.reach(ctx, c.Root, c, at, false, 0, len(into))
	if err == nil {
		copy(into, from)
	}
	return err
}

// AwaitAny implements [backend.Communicator]. It looks into the pipes of all peers in turn, and then
// sleeps until one of them rings this rank's bell.
func (s *Shm) AwaitAny(ctx context.Context, c operation.Call) (src int, err error) {
	if err := s.usable(&c); err != nil {
		return 0, err
	}
	start := time.Now()
	for i := 0; s.park.look(i, start, c.Background); i++ {
		if src, ok := s.anyMessage(); ok {
			return src, nil
		}
	}
	bell := &s.seg.block(s.cfg.Rank).bell
	bell.sleepers.Add(1) // before the looks: who sends later rings
	defer bell.sleepers.Add(-1)
	for {
		seen, heard := bell.value.Load(), s.park.alarms()
		if src, ok := s.anyMessage(); ok {
			return src, nil
		}
		if err := s.troubleWithAll(ctx, &c); err != nil {
			// Between the two looks a rank may have sent, and left.
			if src, ok := s.anyMessage(); ok && errors.Is(err, fault.ErrLeft) {
				return src, nil
			}
			return 0, s.fail(err)
		}
		s.park.sleep(ctx, bell, seen, heard, s.cfg.Timeout-time.Since(c.Start()))
	}
}

// anyMessage returns a rank from which a message has begun to come.
func (s *Shm) anyMessage() (src int, ok bool) {
	for i := 1; i < s.n; i++ {
		peer := s.after(i)
		if p := s.pipes.has(pipeKey{peer, false, pipeMessages}); p != nil && p.block.sent.reached(p.count+1) {
			return peer, true
		}
	}
	return 0, false
}

// troubleWithAll returns why a wait for a message from any peer is in vain: one rank has failed,
// or all have left. It returns nil if the wait is not in vain.
func (s *Shm) troubleWithAll(ctx context.Context, c *operation.Call) error {
	var err error
	for i := 1; i < s.n; i++ {
		peer := (s.cfg.Rank + i) % s.n
		if err = s.trouble(ctx, c, peer); err == nil {
			return nil
		}
		var late *fault.TimeoutError
		var other *fault.RankError
		switch {
		case errors.As(err, &late):
			late.Missing = append([]fault.Member(nil), s.cfg.Members...)
			late.Missing = append(late.Missing[:s.cfg.Rank], late.Missing[s.cfg.Rank+1:]...)
			return err
		case !errors.As(err, &other) || !errors.Is(err, fault.ErrLeft):
			return err
		}
	}
	return err
}
