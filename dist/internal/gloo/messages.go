// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
)

// message is one send or receive of its own.
type message struct {
	op
	timer *time.Timer
}

func (b *Communicator) newMessage(data []byte) *message {
	m, _ := b.messages.Get().(*message)
	if m == nil {
		m = &message{timer: time.NewTimer(b.cfg.Timeout)}
		m.timer.Stop()
		m.waiter = newWaiter()
	}
	m.begin(m.waiter, nil, plain, data)
	return m
}

// Send implements [backend.Communicator], with PyTorch's tag 0.
func (b *Communicator) Send(ctx context.Context, c operation.Call, data collective.Data) error {
	return b.SendTag(ctx, c, 0, data)
}

// Recv implements [backend.Communicator], with PyTorch's tag 0.
func (b *Communicator) Recv(ctx context.Context, c operation.Call, data collective.Data) error {
	return b.RecvTag(ctx, c, 0, data)
}

// SendTag sends data with a tag to rank c.Root.
func (b *Communicator) SendTag(ctx context.Context, c operation.Call, tag uint32, data collective.Data) error {
	return b.message(ctx, &c, c.Root, tag, data.Bytes(), true)
}

// RecvTag receives what rank c.Root sends with a tag.
func (b *Communicator) RecvTag(ctx context.Context, c operation.Call, tag uint32, data collective.Data) error {
	return b.message(ctx, &c, c.Root, tag, data.Bytes(), false)
}

// message sends to a rank or receives from it.
func (b *Communicator) message(ctx context.Context, c *operation.Call, peer int, tag uint32, data []byte, send bool) error {
	if err := b.usable(c); err != nil {
		return err
	}
	if peer < 0 || peer >= len(b.cfg.Members) || peer == b.cfg.Rank {
		return b.fail(fmt.Errorf("dist: %v of group %q on rank %d: no other rank %d", c, b.cfg.Group, b.cfg.Rank, peer))
	}
	begun := time.Now()
	m := b.newMessage(data)
	p := b.pairFor(peer, tag)
	if send {
		if err := p.postSend(slot(tag), &m.op); err != nil {
			return b.broken(c, peer, begun, err)
		}
	} else {
		p.postRecv(slot(tag), &m.op)
	}
	p.flush()
	if err := b.await(ctx, c, m, peer, begun); err != nil {
		return err
	}
	b.messages.Put(m)
	return nil
}

// await waits until a message has gone or come.
func (b *Communicator) await(ctx context.Context, c *operation.Call, m *message, peer int, begun time.Time) error {
	timed := false
	for !m.done.Load() {
		if !timed {
			timed = true
			m.timer.Reset(b.cfg.Timeout - time.Since(c.Start()))
		}
		select {
		case <-m.wake:
		case <-b.failed:
			return b.broken(c, peer, begun, nil)
		case <-ctx.Done():
			return b.fail(b.late(ctx, c, []int{peer}))
		case <-m.timer.C:
			return b.fail(b.late(ctx, c, []int{peer}))
		}
	}
	if timed {
		m.timer.Stop()
	}
	select { // the wake-up of an operation that needed no wait
	case <-m.wake:
	default:
	}
	if m.err != nil {
		return b.broken(c, peer, begun, m.err)
	}
	return nil
}

// AwaitAny implements [backend.Communicator], for messages with PyTorch's tag 0.
func (b *Communicator) AwaitAny(ctx context.Context, c operation.Call) (src int, err error) {
	return b.AwaitAnyTag(ctx, c, 0)
}

// AwaitAnyTag returns a rank that has announced a message with a tag that no receive
// has been posted for.
func (b *Communicator) AwaitAnyTag(ctx context.Context, c operation.Call, tag uint32) (src int, err error) {
	if err := b.usable(&c); err != nil {
		return 0, err
	}
	n := len(b.cfg.Members)
	timer := time.NewTimer(b.cfg.Timeout - time.Since(c.Start()))
	defer timer.Stop()
	begun := time.Now()
	for {
		var missing []int
		var lost error
		last := -1
		for i := 1; i < n; i++ {
			rank := (b.cfg.Rank + i) % n
			found, gone := b.pairFor(rank, tag).available(slot(tag))
			switch {
			case found:
				return rank, nil
			case gone != nil:
				last, lost = rank, gone
			default:
				missing = append(missing, rank)
			}
		}
		if len(missing) == 0 && lost != nil {
			return 0, b.broken(&c, last, begun, lost)
		}
		select {
		case <-b.anyone.wake:
		case <-b.failed:
			return 0, b.broken(&c, 0, begun, nil)
		case <-ctx.Done():
			return 0, b.fail(b.late(ctx, &c, missing))
		case <-timer.C:
			return 0, b.fail(b.late(ctx, &c, missing))
		}
	}
}
