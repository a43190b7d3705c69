// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/rpc"
)

// remote is a server as a client sees it: its address, the connection, and the pushes that
// it has not acknowledged.
type remote struct {
	client *Client
	index  int

	opening sync.Mutex // held while the server is asked who it is
	mu      sync.Mutex
	addr    string
	peer    *rpc.Peer // nil: it must be found, and be asked who it is
	history uint64    // of its data
	life    uint64    // of its process
	known   bool      // there is a history
	kept    bool      // it has acknowledged a push
	unsure  bool      // it may have a push of which it said that it could not keep it
	id      uint64    // by which it knows this client
	total   uint64    // pushes that it has acknowledged under ids before
	acked   uint64    // number of the last push that it has acknowledged
	sent    uint64    // of the last one that was sent
	next    int64     // the worker's step that it expected when it was last asked
	first   int64     // the first step that this client pushes to it
	queue   []*outgoing
	sending bool          // a request with pushes is under way
	wake    chan struct{} // that there is something in the queue
	slots   chan struct{} // taken by pushes that it has not acknowledged
}

// maxOutstanding is how many pushes to a server may wait for their acknowledgement before
// Step waits.
const maxOutstanding = 16

// Times between tries to reach a server.
const (
	firstPause = 2 * time.Millisecond
	longPause  = 200 * time.Millisecond
)

// retry does something with the server until it succeeds, or fails for a reason that will
// stay, or ctx ends.
func (r *remote) retry(ctx context.Context, f func() error) error {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return r.wrap(ctx, err)
		}
		if !r.passes(err) {
			return r.wrap(ctx, err)
		}
		r.forget()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return r.wrap(ctx, err)
		}
	}
}

// passes reports whether an error may pass when the server is started again, or comes back.
func (r *remote) passes(err error) bool {
	if r.client.agent.Context().Err() != nil || r.client.ctx.Err() != nil {
		return false
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind == KindUnreachable
	}
	switch rpc.KindOf(err) {
	case rpc.KindUnreachable, rpc.KindLost, rpc.KindClosed, rpc.KindUnknownMethod, rpc.KindBusy:
		return true
	}
	return false
}

// wrap makes an error of this package of what a call has returned.
func (r *remote) wrap(ctx context.Context, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if ctx.Err() != nil && context.Cause(ctx) != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w; the last try: %w", context.Cause(ctx), err)
	}
	e = errorf(KindUnreachable, "at %s: %w", r.where(), err)
	e.Server = r.index
	e.cause = err
	return e
}

func (r *remote) where() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.addr == "" {
		return "no known address"
	}
	return r.addr
}

// forget makes the next request ask the server who it is.
func (r *remote) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peer = nil
}

// name returns the number by which the server knows this client.
func (r *remote) name() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id
}

// doubt is called when a push has failed. Often nobody knows whether the server has it, and
// the number of the push must not be that of another one: the server would take the other
// for a repetition. So the client gives itself a new name, under which numbers begin anew.
func (r *remote) doubt(err error) {
	switch KindOf(err) {
	case KindTable, KindKeys, KindValues, KindOrder, KindSettings:
		return // the server has refused the push before it counted it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if KindOf(err) == KindStorage { // it has answered, so it knows which pushes it has
		r.peer, r.unsure = nil, true
		return
	}
	r.total += r.acked
	r.id, r.acked, r.sent, r.peer = rand.Uint64(), 0, 0, nil
}

// opened returns the peer if it has been asked who it is.
func (r *remote) opened() *rpc.Peer {
	p, _ := r.met()
	return p
}

// met returns the peer and the process that it was when it was asked.
func (r *remote) met() (*rpc.Peer, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peer, r.life
}

// ensure finds the server, if there is no connection, and asks it who it is.
func (r *remote) ensure(ctx context.Context) error {
	if r.opened() != nil {
		return nil
	}
	r.opening.Lock()
	defer r.opening.Unlock()
	if r.opened() != nil {
		return nil
	}
	c := r.client
	addr := ""
	if c.servers.store != nil {
		text, err := c.servers.store.Get(ctx, addressKey(r.index))
		if err != nil {
			return fmt.Errorf("find server %d in the store: %w", r.index, err)
		}
		addr = string(text)
	} else {
		addr = c.servers.addrs[r.index]
	}
	r.mu.Lock()
	r.addr = addr
	r.mu.Unlock()
	peer, err := c.agent.Visit(ctx, addr)
	if err != nil {
		return err
	}
	c.mu.Lock()
	want := c.set.encode()
	c.mu.Unlock()
	// A server that has died while its machine lives on is noticed at once; a try at an
	// address at which nobody listens yet is not to take all the time there is, for the
	// server may come back at another one.
	try, cancel := ctx, context.CancelFunc(func() {})
	if c.servers.store != nil {
		try, cancel = context.WithTimeout(ctx, tryTime)
	}
	defer cancel()
	reply, err := openMethod.Call(try, peer, openArgs{version, r.index, r.name(), c.worker, want})
	if err != nil {
		if try.Err() != nil && ctx.Err() == nil {
			err = r.unreachable("nobody answered at %s for %v: %w", addr, tryTime, err)
		}
		return err
	}
	return r.meet(peer, &reply)
}

// tryTime is how long a try to reach a server takes at most, if the server may come back
// elsewhere.
const tryTime = 2 * time.Second

func (r *remote) unreachable(format string, args ...any) *Error {
	e := errorf(KindUnreachable, format, args...)
	e.Server = r.index
	return e
}

// meet checks what a server says of itself.
func (r *remote) meet(peer *rpc.Peer, reply *openReply) error {
	set, err := decodeSettings(reply.Settings)
	if err != nil {
		return r.unreachable("its answer cannot be read: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	no := errorf(KindHistory, "").by(r.client.worker, -1)
	no.Server = r.index
	switch {
	case r.known && reply.History != r.history && r.kept:
		no.Msg = fmt.Sprintf("the server came back without its data: it had acknowledged push %d, and now it has other data, which know nothing of it; give it back its directory, or begin again", r.total+r.acked)
		return no
	case reply.Number < r.acked:
		no.Msg = fmt.Sprintf("the server came back with old data: it had acknowledged push %d, and knows of push %d; give it back its newest directory, or begin again", r.acked, reply.Number)
		return no
	case reply.Number > r.sent:
		no.Msg = fmt.Sprintf("the server knows of push %d of this client, which has sent %d", reply.Number, r.sent)
		return no
	}
	if r.unsure {
		r.acked, r.unsure = reply.Number, false
	}
	r.history, r.known, r.life, r.next, r.peer = reply.History, true, reply.Life, reply.Next, peer
	c := r.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if all, _, no := c.set.agree(set); no != nil {
		no.Server = r.index
		return no
	} else {
		c.set = all
	}
	return nil
}

// call calls a method of the server, again after a lost connection.
func call[A, R any](ctx context.Context, r *remote, m *rpc.Method[A, R], in func(life uint64) A) (out R, err error) {
	err = r.retry(ctx, func() error {
		if err := r.ensure(ctx); err != nil {
			return err
		}
		peer, life := r.met()
		if peer == nil { // lost again
			return r.unreachable("the connection was lost")
		}
		var err error
		out, err = m.Call(ctx, peer, in(life))
		return err
	})
	return out, err
}
