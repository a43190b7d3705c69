// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// The writer is the goroutine that changes a server's state: at any time there is one at most.
// Handlers give it requests. It appends the entries of all that wait to the journal by one write, applies them in that
// order, and then lets the handlers answer.

// request is a change that a handler waits for. Exactly one of settings, pushes, leaves,
// saves and other is there.
type request struct {
	client uint64
	worker int

	settings *settings
	opened   openReply

	number uint64 // of the first push
	pushes []*push
	batch  uint64 // in which the last push is applied
	waited int    // keys that wait for more pushes

	leaves bool

	other any // an entry that the handler has made

	saves  bool
	lsn    uint64
	saved  []byte
	tables []*rows.Table

	entries []any
	err     *Error
	done    chan struct{}
	turn    atomic.Uint32 // whose the request is
}

// Whose a request is.
const (
	ofHandler = iota // it waits, and its handler may take it back
	ofWriter         // its memory is read until it is done
	ofNobody         // its handler has taken it back
)

// maxBatch is how many requests, and maxBatchBytes how many bytes of gradients, the writer
// takes at once.
const (
	maxBatch      = 1024
	maxBatchBytes = 64 << 20
)

// turns are the requests that wait for the writer. Whoever brings a request while nobody
// writes is the writer until its own request is done, so that often nobody has to be woken.
// Then a goroutine goes on with those that have come meanwhile.
type turns struct {
	mu      sync.Mutex
	waiting []*request
	busy    bool // somebody is the writer
	over    bool // there will be no more turns
}

// add adds a request, and says whether the caller is the writer now. It returns false for ok
// if there are no more turns.
func (t *turns) add(r *request) (writes, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false, false
	}
	t.waiting = append(t.waiting, r)
	writes = !t.busy
	t.busy = true
	return writes, true
}

// next returns the requests of the next turn, nil if there are none: then nobody writes. over
// says that there will be none.
func (t *turns) next() (turn []*request, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || len(t.waiting) == 0 {
		t.busy = false
		return nil, t.over
	}
	first := t.waiting[0]
	n, bytes := 1, first.bytes()
	if first.settings == nil && len(t.waiting) > 1 {
		// What a request may do depends on the requests of its client and its worker before
		// it, and on the settings: they are in turns before.
		clients, workers := map[uint64]bool{first.client: true}, map[int]bool{first.worker: true}
		for _, r := range t.waiting[1:min(len(t.waiting), maxBatch)] {
			if bytes >= maxBatchBytes || r.settings != nil || clients[r.client] || r.worker >= 0 && workers[r.worker] {
				break
			}
			clients[r.client], workers[r.worker] = true, true
			n, bytes = n+1, bytes+r.bytes()
		}
	}
	turn = slices.Clone(t.waiting[:n])
	rest := copy(t.waiting, t.waiting[n:])
	clear(t.waiting[rest:])
	t.waiting = t.waiting[:rest]
	return turn, false
}

// end lets there be no more turns, and says whether nobody writes.
func (t *turns) end() (idle bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	return !t.busy
}

// do gives a request to the writer and waits for it. If ctx ends before the request's turn
// comes, the request has no effect. When do returns, nobody reads the request's memory.
func (s *Server) do(ctx context.Context, r *request) error {
	r.done = make(chan struct{})
	writes, ok := s.turns.add(r)
	if !ok {
		return s.failed.Load()
	}
	if writes {
		s.write(r, nil)
	}
	select {
	case <-r.done:
	case <-s.stopped:
		select {
		case <-r.done:
		default:
			return s.failed.Load()
		}
	case <-ctx.Done():
		if r.turn.CompareAndSwap(ofHandler, ofNobody) {
			return ctx.Err()
		}
		select { // the writer waits for nothing but the journal
		case <-r.done:
		case <-s.stopped:
		}
		return ctx.Err()
	}
	if r.err != nil {
		return r.err
	}
	return nil
}

// write is the writer. It begins with a turn, if it is given one, and ends when own, if there
// is such a request, is done: a goroutine then goes on with those that wait.
func (s *Server) write(own *request, turn []*request) {
	whole := false
	defer func() {
		if !whole { // a panic: nobody knows what the state is
			s.failed.CompareAndSwap(nil, s.errorf(KindStorage, "the server has stopped, for a request could not be applied"))
			s.turns.end()
			s.stop()
		}
	}()
	for done := false; !whole; turn = nil {
		over := false
		if turn == nil {
			turn, over = s.turns.next()
		}
		switch {
		case turn == nil:
			whole = true
		case done:
			go s.write(nil, turn)
			whole = true
		case !s.take(turn):
			over = true
			s.turns.end()
			whole = true
		default:
			done = own != nil && slices.Contains(turn, own)
		}
		if over {
			s.stop()
		}
	}
}

// stop lets nobody wait for the writer any more.
func (s *Server) stop() { s.stopOnce.Do(func() { close(s.stopped) }) }

func (r *request) bytes() int {
	n := 0
	for _, p := range r.pushes {
		n += p.bytes()
	}
	if e, ok := r.other.(*insertion); ok {
		n += 8*len(e.keys) + 4*len(e.values) + 4*len(e.states)
	}
	return n
}

// take does the requests of a turn. It returns false if the server cannot go on.
func (s *Server) take(turn []*request) bool {
	turn = slices.DeleteFunc(turn, func(r *request) bool { return !r.turn.CompareAndSwap(ofHandler, ofWriter) })
	var entries [][]byte
	for _, r := range turn {
		s.prepare(r)
		if s.journal == nil {
			continue
		}
		for _, e := range r.entries {
			entries = append(entries, encodeEntry(e))
		}
	}
	var first uint64
	var err error
	if len(entries) > 0 || s.journal == nil {
		if first, err = s.append(entries); err != nil {
			_ = s.state.dropTables() // they are empty
			for _, r := range turn {
				if len(r.entries) > 0 {
					r.err = s.errorf(KindStorage, "what was sent cannot be kept, and has not been applied: %w", err).by(r.worker, -1)
					r.entries = nil
				}
			}
		}
	}
	for _, r := range turn {
		for _, e := range r.entries {
			if err := s.state.apply(first, e); err != nil {
				s.failed.CompareAndSwap(nil, s.errorf(KindStorage, "the server has stopped, for entry %d of its log cannot be applied: %w", first, err))
				return false
			}
			r.waited += s.state.waited
			first++
		}
	}
	if !s.completeMore() || !s.evict() {
		return false
	}
	s.publish()
	s.keepShort()
	for _, r := range turn {
		s.finish(r)
		close(r.done)
	}
	return true
}

// completeMore applies the steps that are complete because a worker has left, each by an
// entry of its own.
func (s *Server) completeMore() bool {
	for s.state.mode() == ModeSynchronous && s.state.isComplete() {
		if kept, ok := s.own(&leaving{worker: slices.Index(s.state.left, true)}); !ok || !kept {
			return ok
		}
	}
	return true
}

// own makes an entry of the server's own. If it cannot be kept, a later turn tries again.
// It returns false for ok if the server cannot go on.
func (s *Server) own(e any) (kept, ok bool) {
	lsn, err := s.append([][]byte{encodeEntry(e)})
	if err != nil {
		return false, true
	}
	if err := s.state.apply(lsn, e); err != nil {
		s.failed.CompareAndSwap(nil, s.errorf(KindStorage, "the server has stopped, for entry %d of its log cannot be applied: %w", lsn, err))
		return false, false
	}
	return true, true
}

// evictTurns is how many turns pass between looks for rows that should leave, where a step
// or a number of rows does not say when to look.
const evictTurns = 256

// maxRemoved is how many keys an entry removes.
const maxRemoved = 1 << 16

// evict removes the rows that should leave their tables.
func (s *Server) evict() bool {
	st := s.state
	s.took++
	for i, t := range st.tables {
		e := st.set.Tables[i].Evict
		for len(s.looked) <= i {
			s.looked = append(s.looked, 0)
		}
		aged := e.Steps > 0 && st.step >= s.looked[i]+uint64(max(1, e.Steps/8))
		if !aged && !(e.Rows > 0 && t.Len() > e.Rows) && !(e.Bytes > 0 && s.took%evictTurns == 0) {
			continue
		}
		s.looked[i] = st.step
		keys := t.Evict(rows.Mark{LSN: st.lsn, Step: st.step})
		for len(keys) > 0 {
			n := min(len(keys), maxRemoved)
			if kept, ok := s.own(&removal{i, st.step, keys[:n]}); !ok || !kept {
				return ok
			}
			keys = keys[n:]
		}
		if s.journal == nil { // nobody will ask which rows have left
			t.Forget(st.lsn)
		}
	}
	return true
}

// encodeEntry returns the bytes of an entry.
func encodeEntry(e any) []byte {
	switch e := e.(type) {
	case *settings:
		return append([]byte{entrySettings}, e.encode()...)
	case *push:
		return e.encode()
	case *removal:
		return e.encode()
	case *beginning:
		return e.encode()
	case *insertion:
		return e.encode()
	case *Progress:
		return e.encode()
	}
	return e.(*leaving).encode()
}

// prepare says which entries a request makes, or why it is refused. An entry that prepare
// makes can be applied.
func (s *Server) prepare(r *request) {
	switch {
	case r.settings != nil:
		all, changed, err := s.state.set.agree(*r.settings)
		if err == nil {
			err = s.state.makeTables(&all)
		}
		if err != nil {
			err.Server = s.index
			r.err = err.by(r.worker, -1)
			return
		}
		if r.worker >= 0 && all.Consistency == nil {
			all.Consistency, changed = &Consistency{Mode: ModeSynchronous}, true
			r.settings.Consistency = all.Consistency
		}
		if changed {
			r.entries = append(r.entries, r.settings)
		}
	case r.leaves:
		if r.worker < 0 || r.worker >= len(s.state.left) {
			r.err = s.errorf(KindSettings, "it is none of the %d workers", len(s.state.left)).by(r.worker, -1)
		} else if !s.state.left[r.worker] {
			r.entries = append(r.entries, &leaving{r.client, r.worker})
		}
	case r.pushes != nil:
		s.preparePush(r)
	case r.other != nil:
		r.entries = append(r.entries, r.other)
	}
}

// noWorker is the error for a push of who may not push.
func (s *Server) noWorker(workers int, mode Mode) *Error {
	return s.errorf(KindSettings, "it is none of the %d workers, and the consistency is %s", workers, mode)
}

// preparePush takes the pushes of a client that are new.
func (s *Server) preparePush(r *request) {
	var last uint64
	if c := s.state.clients[r.client]; c != nil {
		last = c.Number
	}
	if r.number > last+1 || r.number == 0 {
		r.err = s.errorf(KindOrder, "push %d of a client whose last one is %d", r.number, last).by(r.worker, -1)
		return
	}
	mode := s.state.mode()
	if r.worker >= len(s.state.next) || r.worker < 0 && mode != ModeAsynchronous {
		r.err = s.noWorker(len(s.state.next), mode).by(r.worker, -1) // it was one when the push came
		return
	}
	next, ahead := int64(0), s.state.ahead
	if r.worker >= 0 {
		next = s.state.next[r.worker]
	}
	for i, p := range r.pushes {
		if r.number+uint64(i) <= last { // it is here already
			continue
		}
		if mode == ModeSynchronous && p.step > s.state.applied {
			ahead += p.bytes()
		}
		if mode != ModeAsynchronous && p.step != next {
			r.err = s.errorf(KindOrder, "the worker's next step is %d", next).by(r.worker, p.step)
		} else if mode == ModeSynchronous && p.step >= s.state.applied+maxAhead {
			r.err = s.errorf(KindOrder, "the slowest worker has pushed %d steps only", s.state.applied).by(r.worker, p.step)
		} else if mode == ModeSynchronous && p.step > s.state.applied && ahead > maxAheadBytes {
			r.err = s.errorf(KindOrder, "the slowest worker has pushed %d steps only, and the pushes of later steps take %d bytes of %d: pull in each step, so that the server can say when to go on", s.state.applied, ahead, maxAheadBytes).by(r.worker, p.step)
		}
		if r.err != nil {
			r.entries = nil
			return
		}
		next = p.step + 1
		p.number = r.number + uint64(i)
		r.entries = append(r.entries, p)
	}
}

// finish fills in the answer of a request.
func (s *Server) finish(r *request) {
	switch {
	case r.err != nil:
	case r.settings != nil:
		r.opened = openReply{History: s.history, Life: s.process, Settings: s.state.set.encode()}
		if c := s.state.clients[r.client]; c != nil {
			r.opened.Number = c.Number
		}
		if r.worker >= 0 {
			r.opened.Next = s.state.next[r.worker]
		}
	case r.pushes != nil:
		r.batch = s.state.clients[r.client].Batch
	case r.saves:
		r.lsn, r.saved, r.tables = s.state.lsn, s.state.save(), s.state.tables
	}
}
