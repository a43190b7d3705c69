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

// Keys in the store, below "rendezvous/", the name of the job and "/".
const (
	keyState    = "state"
	keyArrivals = "arrivals"
	keyCard     = "node/" // and the ID of the node
	keyTurn     = "turn/" // and a version; the key is there once the state has that version
)

const (
	// lookChunk is how many cards are read in one call.
	lookChunk = 1000
	// newsPatience limits one wait for a new state. retryPause is the time between two
	// attempts to reach the store.
	newsPatience = 20 * time.Second
	retryPause   = 100 * time.Millisecond
	// oldTurns is how many keys below keyTurn stay in the store.
	oldTurns = 64
)

// Opener opens the store that the nodes share. It is called again when the connection is
// lost, unless the store is Lasting.
type Opener func(ctx context.Context) (*Opened, error)

// Opened is a store that has been opened.
type Opened struct {
	Store store.Store
	Close func()
	// Lasting says that the store connects again by itself after a failure.
	Lasting bool
}

// storeClient makes calls to the store. It opens the store when needed. Each call has a
// time limit.
type storeClient struct {
	open    Opener
	prefix  string
	timeout time.Duration

	opening sync.Mutex // held by the one that opens the store

	mu     sync.Mutex // never held during a call: the loop asks for failures
	opened *Opened
	store  store.Store
	last   error     // the last failure; nil after a call that succeeded
	since  time.Time // of the first failure since then
}

func newStoreClient(open Opener, job string, timeout time.Duration) *storeClient {
	return &storeClient{open: open, prefix: "rendezvous/" + job, timeout: timeout}
}

// call calls do with the store.
func (sc *storeClient) call(ctx context.Context, timeout time.Duration, do func(ctx context.Context, s store.Store) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, opened, err := sc.get(ctx)
	if err == nil {
		err = do(ctx, s)
	}
	sc.record(opened, err)
	return err
}

// get returns the store. If it is not open, one caller opens it and the others wait.
func (sc *storeClient) get(ctx context.Context) (store.Store, *Opened, error) {
	if s, o := sc.current(); o != nil {
		return s, o, nil
	}
	sc.opening.Lock()
	defer sc.opening.Unlock()
	if s, o := sc.current(); o != nil {
		return s, o, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sc.timeout) // the call itself may take longer
	defer cancel()
	o, err := sc.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.opened, sc.store = o, store.Prefix(o.Store, sc.prefix)
	return sc.store, o, nil
}

func (sc *storeClient) current() (store.Store, *Opened) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.store, sc.opened
}

// record notes how a call ended. After a failure the store is opened anew, because an old
// connection may take long to recover.
func (sc *storeClient) record(opened *Opened, err error) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if err == nil {
		sc.last = nil
		return
	}
	if sc.last == nil {
		sc.since = time.Now()
	}
	sc.last = err
	if opened != nil && opened == sc.opened && !opened.Lasting {
		sc.opened = nil
		go opened.Close() // it waits for the calls under way
	}
}

// failure returns since when and why the store is out of reach; a nil error if it is not.
func (sc *storeClient) failure() (time.Time, error) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.since, sc.last
}

func (sc *storeClient) close() {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.opened != nil {
		sc.opened.Close()
		sc.opened = nil
	}
}

// absent is a value that no key has. A compare-and-set with it reads a key without waiting.
var absent = []byte{0}

// do carries out an action that needs the store, and returns the event that answers it.
func (sc *storeClient) do(ctx context.Context, a Action) Event {
	switch a := a.(type) {
	case Write:
		sent := time.Now()
		err := sc.call(ctx, sc.timeout, func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, keyCard+a.Card.Node.ID, encode(&a.Card))
		})
		return Put{OK: err == nil, Sent: sent}
	case Arrive:
		err := sc.call(ctx, sc.timeout, func(ctx context.Context, s store.Store) error {
			return s.Append(ctx, keyArrivals, []byte(a.ID+"\n"))
		})
		return Arrived{OK: err == nil}
	case Peek:
		s, err := sc.peek(ctx)
		return Read{OK: err == nil, Asked: true, State: s}
	case Look:
		return sc.look(ctx, a)
	case Swap:
		return sc.swap(ctx, a)
	}
	panic(fmt.Sprintf("%T asks nothing of the store", a))
}

func (sc *storeClient) peek(ctx context.Context) (state *State, err error) {
	err = sc.call(ctx, sc.timeout, func(ctx context.Context, s store.Store) error {
		b, _, err := s.CompareAndSet(ctx, keyState, absent, absent)
		if err == nil && b != nil {
			state, err = decodeState(b)
		}
		return err
	})
	return state, err
}

func (sc *storeClient) look(ctx context.Context, a Look) Event {
	e := Looked{}
	keys := make([]string, 0, len(a.IDs)+1)
	if a.List {
		keys = append(keys, keyArrivals)
	}
	for _, id := range a.IDs {
		keys = append(keys, keyCard+id)
	}
	for chunk := range slices.Chunk(keys, lookChunk) {
		err := sc.call(ctx, sc.timeout, func(ctx context.Context, s store.Store) error {
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
					if bad != nil { // the bad card of one node must not hold up the others
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

func (sc *storeClient) swap(ctx context.Context, a Swap) Event {
	e := Swapped{}
	err := sc.call(ctx, sc.timeout, func(ctx context.Context, s store.Store) error {
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
		return sc.ring(ctx, s, a.New.Version)
	})
	e.OK = err == nil
	return e
}

// ring tells the nodes that wait for a version that it is there. It does so for the version
// before too, because its decider may have died before it could.
func (sc *storeClient) ring(ctx context.Context, s store.Store, version uint64) error {
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

// follow passes every new state on, until ctx is done.
func (sc *storeClient) follow(ctx context.Context, news func(Event)) {
	known, born := uint64(0), ""
	for ctx.Err() == nil {
		s, err := sc.peek(ctx)
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
		err = sc.wait(ctx, keyTurn+strconv.FormatUint(known+1, 10))
		// If the wait times out, the state is read again: a node that is far behind waits for
		// a version whose key has been removed.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			pause(ctx, retryPause)
		}
	}
}

// wait waits for a key. A timeout is no failure of the store.
func (sc *storeClient) wait(ctx context.Context, key string) error {
	var late error
	err := sc.call(ctx, newsPatience+sc.timeout, func(ctx context.Context, s store.Store) error {
		ctx, cancel := context.WithTimeout(ctx, newsPatience)
		defer cancel()
		err := s.Wait(ctx, key)
		if errors.Is(err, context.DeadlineExceeded) {
			late, err = err, nil
		}
		return err
	})
	if err != nil {
		return errors.New(err.Error()) // no caller takes it for a timeout
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
