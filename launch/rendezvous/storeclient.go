// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// Where things are in the store, below "rendezvous/", the job and "/".
const (
	keyState    = "state"
	keyArrivals = "arrivals"
	keyCard     = "node/" // and the node's ID
	keyTurn     = "turn/" // and a version: there when the state has it
)

const (
	// lookChunk is how many cards are read in one call.
	lookChunk = 1000
	// newsPatience bounds one wait for news, retryPause is the time between two
	// tries to reach a store that is out of reach.
	newsPatience = 20 * time.Second
	retryPause   = 100 * time.Millisecond
	// oldTurns is how many of them stay in the store.
	oldTurns = 64
)

// Opener opens the store that the nodes share. It is called again when the
// connection is lost, unless the store is Lasting.
type Opener func(ctx context.Context) (*Opened, error)

// Opened is a store that has been opened.
type Opened struct {
	Store store.Store
	Close func()
	// Lasting says that the store finds its way back by itself after failures.
	Lasting bool
}

// link is the way to the store. Its calls end within a time of their own.
type link struct {
	open    Opener
	prefix  string
	timeout time.Duration

	opening sync.Mutex // held by the one that opens the store

	mu     sync.Mutex // held for moments: the agent's loop asks for failures
	opened *Opened
	store  store.Store
	last   error     // the last failure since it worked
	since  time.Time // when that began
}

func newLink(open Opener, job string, timeout time.Duration) *link {
	return &link{open: open, prefix: "rendezvous/" + job, timeout: timeout}
}

// call does something with the store.
func (l *link) call(ctx context.Context, timeout time.Duration, do func(ctx context.Context, s store.Store) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, opened, err := l.get(ctx)
	if err == nil {
		err = do(ctx, s)
	}
	l.note(opened, err)
	return err
}

// get returns the store, opened anew if need be. One opens it, others wait.
func (l *link) get(ctx context.Context) (store.Store, *Opened, error) {
	if s, o := l.current(); o != nil {
		return s, o, nil
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	if s, o := l.current(); o != nil {
		return s, o, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout) // whatever the call may take
	defer cancel()
	o, err := l.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened, l.store = o, store.Prefix(o.Store, l.prefix)
	return l.store, o, nil
}

func (l *link) current() (store.Store, *Opened) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store, l.opened
}

// note takes in how a call ended. After a failure the store is opened anew: an old
// connection may be long in finding its way again.
func (l *link) note(opened *Opened, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.last = nil
		return
	}
	if l.last == nil {
		l.since = time.Now()
	}
	l.last = err
	if opened != nil && opened == l.opened && !opened.Lasting {
		l.opened = nil
		go opened.Close() // which waits for calls under way
	}
}

// failure returns why the store is out of reach, nil if it is not, and since when.
func (l *link) failure() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.last
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened != nil {
		l.opened.Close()
		l.opened = nil
	}
}

// absent is a value that no key has: to compare with it is to read without waiting.
var absent = []byte{0}

// do carries out an action that asks the store.
func (l *link) do(ctx context.Context, a Action) Event {
	switch a := a.(type) {
	case Write:
		sent := time.Now()
		err := l.call(ctx, l.timeout, func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, keyCard+a.Card.Node.ID, encode(&a.Card))
		})
		return Put{OK: err == nil, Sent: sent}
	case Arrive:
		err := l.call(ctx, l.timeout, func(ctx context.Context, s store.Store) error {
			return s.Append(ctx, keyArrivals, []byte(a.ID+"\n"))
		})
		return Arrived{OK: err == nil}
	case Peek:
		s, err := l.peek(ctx)
		return Read{OK: err == nil, Asked: true, State: s}
	case Look:
		return l.look(ctx, a)
	case Swap:
		return l.swap(ctx, a)
	}
	panic(fmt.Sprintf("%T asks nothing of the store", a))
}

func (l *link) peek(ctx context.Context) (state *State, err error) {
	err = l.call(ctx, l.timeout, func(ctx context.Context, s store.Store) error {
		b, _, err := s.CompareAndSet(ctx, keyState, absent, absent)
		if err == nil && b != nil {
			state, err = decodeState(b)
		}
		return err
	})
	return state, err
}

func (l *link) look(ctx context.Context, a Look) Event {
	e := Looked{}
	keys := make([]string, 0, len(a.IDs)+1)
	if a.List {
		keys = append(keys, keyArrivals)
	}
	for _, id := range a.IDs {
		keys = append(keys, keyCard+id)
	}
	for chunk := range slices.Chunk(keys, lookChunk) {
		err := l.call(ctx, l.timeout, func(ctx context.Context, s store.Store) error {
			values, err := s.MultiGet(ctx, chunk...)
			if err != nil {
				return err
			}
			for i, b := range values {
				if chunk[i] == keyArrivals {
					if e.List, err = decodeArrivals(b); err != nil {
						return fmt.Errorf("key %q: %w", chunk[i], err)
					}
				} else {
					id := strings.TrimPrefix(chunk[i], keyCard)
					c, bad := decodeCard(b)
					if bad != nil { // of one node: not to hold up the others
						c = &Card{Node: Node{ID: id}, Text: clip(bad.Error())}
					}
					e.Cards = append(e.Cards, *c)
				}
			}
			return nil
		})
		if err != nil {
			return Looked{}
		}
	}
	e.OK = true
	return e
}

// decodeArrivals reads the list of those who have come.
func decodeArrivals(b []byte) ([]string, error) {
	const line = idBytes + 1
	if len(b)%line != 0 || len(b) > maxState {
		return nil, fmt.Errorf("%w: a list of arrivals of %d bytes", errWire, len(b))
	}
	list := make([]string, 0, len(b)/line)
	for one := range slices.Chunk(b, line) {
		if id := string(one[:idBytes]); isID(id) && one[idBytes] == '\n' {
			list = append(list, id)
			continue
		}
		return nil, fmt.Errorf("%w: %q in the list of arrivals", errWire, one)
	}
	return list, nil
}

func (l *link) swap(ctx context.Context, a Swap) Event {
	e := Swapped{}
	err := l.call(ctx, l.timeout, func(ctx context.Context, s store.Store) error {
		var old []byte
		if a.Old != nil {
			old = encode(a.Old)
		}
		b, won, err := s.CompareAndSet(ctx, keyState, old, encode(a.New))
		if err != nil {
			return err
		}
		if e.Won, e.State = won, a.New; !won {
			if b == nil {
				return errors.New("the state has been removed from the store")
			}
			e.State, err = decodeState(b)
			return err
		}
		return l.ring(ctx, s, a.New.Version)
	})
	e.OK = err == nil
	return e
}

// ring tells those who wait for a version that it is there: and for the one
// before, whose decider may have died before it could.
func (l *link) ring(ctx context.Context, s store.Store, version uint64) error {
	turn := func(v uint64) string { return keyTurn + strconv.FormatUint(v, 10) }
	if err := s.MultiSet(ctx, []string{turn(version - 1), turn(version)}, [][]byte{{1}, {1}}); err != nil {
		return err
	}
	if version > oldTurns {
		_, err := s.Delete(ctx, turn(version-oldTurns))
		return err
	}
	return nil
}

// follow hands every new state on, until ctx is done.
func (l *link) follow(ctx context.Context, news func(Event)) {
	known, born := uint64(0), ""
	for ctx.Err() == nil {
		s, err := l.peek(ctx)
		if err == nil && s == nil && known > 0 { // another store is there now
			known, born = 0, ""
			news(Read{OK: true})
		}
		if err != nil || s == nil {
			pause(ctx, retryPause)
			continue
		}
		if s.Version > known || s.Born != born {
			known, born = s.Version, s.Born
			news(Read{OK: true, State: s})
		}
		err = l.wait(ctx, keyTurn+strconv.FormatUint(known+1, 10))
		// Without news it may be that they were missed: who is far behind waits for
		// a version whose key has been removed.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			pause(ctx, retryPause)
		}
	}
}

// wait waits for a key. That it does not come in time is no failure of the store.
func (l *link) wait(ctx context.Context, key string) error {
	var late error
	err := l.call(ctx, newsPatience+l.timeout, func(ctx context.Context, s store.Store) error {
		ctx, cancel := context.WithTimeout(ctx, newsPatience)
		defer cancel()
		err := s.Wait(ctx, key)
		if errors.Is(err, context.DeadlineExceeded) {
			late, err = err, nil
		}
		return err
	})
	if err != nil {
		return errors.New(err.Error()) // whatever it was, it is worth a look
	}
	return late
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
