// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The states of an island.
const (
	coming = "coming" // it takes what it has missed: nobody waits for it
	ready  = "ready"
	left   = "left"
)

// sign is a sign of life of an island.
type sign struct {
	State  string
	Birth  int64 // of this start of the island
	Count  int64 // grows
	Posted int   // the number of the exchange after the last one that it has posted
}

// watcher gives the signs of life of this island, and looks at those of the others.
type watcher struct {
	i *Island

	mu     sync.Mutex
	mine   sign
	others []sign
	seen   []time.Time // when each sign was new
	want   string      // the state that an island has asked for

	newest int64 // the birth of this island that the store has

	floor int // how far the others had come when this island met them, as mostPosted says it

	cancel context.CancelFunc
	ended  chan struct{}
}

func newWatcher(i *Island) *watcher {
	return &watcher{i: i, mine: sign{State: coming, Birth: i.birth}, others: make([]sign, i.c.Islands), seen: make([]time.Time, i.c.Islands)}
}

// beat returns the next sign of life.
func (w *watcher) beat() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine.Count++
	text, err := json.Marshal(w.mine)
	if err != nil {
		panic(err) // it is strings and numbers
	}
	return text
}

// start looks once at all islands, and then again and again until stop.
func (w *watcher) start(ctx context.Context) error {
	if _, _, err := w.i.store.CompareAndSet(ctx, "want", nil, []byte{}); err != nil {
		return w.i.errorf("look at the others: %w", err)
	}
	if err := w.look(ctx); err != nil {
		return w.i.errorf("look at the others: %w", err)
	}
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		for pause(ctx, w.i.c.Silence/8) == nil {
			_ = w.say(ctx, "") // who needs the store gets its error
			_ = w.look(ctx)
		}
	}()
	return nil
}

func (w *watcher) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.ended
	}
}

// say gives a sign of life, with a new state unless that is "".
func (w *watcher) say(ctx context.Context, state string) error {
	if state != "" {
		w.mu.Lock()
		w.mine.State = state
		w.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, w.i.c.Silence)
	defer cancel()
	return w.i.store.Set(ctx, w.i.key("alive", w.i.c.Island), w.beat())
}

// posted notes that this island has posted an exchange.
func (w *watcher) posted(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine.Posted = n + 1
}

// look reads the signs of life of all islands.
func (w *watcher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.i.c.Silence)
	defer cancel()
	keys := []string{"want", w.i.key("born", w.i.c.Island, "at")}
	for n := range w.i.c.Islands {
		keys = append(keys, w.i.key("alive", n))
	}
	texts, err := w.i.store.MultiGet(ctx, keys...)
	if err != nil {
		return err
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = string(texts[0])
	if born, err := strconv.ParseInt(string(texts[1]), 10, 64); err == nil {
		w.newest = born
	}
	for n, text := range texts[2:] {
		var s sign
		if err := json.Unmarshal(text, &s); err != nil {
			continue // it counts as silent
		}
		if s.Count != w.others[n].Count || s.Birth != w.others[n].Birth {
			w.others[n], w.seen[n] = s, now
		}
	}
	return nil
}

// partake notes that islands have taken part in an exchange, which the last look may not show yet. An
// island that was left out because it showed no life counts as lost until it shows some.
func (w *watcher) partake(members []member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range members {
		if s := &w.others[m.Island]; m.Birth > s.Birth || m.Birth == s.Birth && s.State == coming {
			s.Birth, s.State, w.seen[m.Island] = m.Birth, ready, time.Now()
		}
	}
	for n := range w.others {
		took := slices.ContainsFunc(members, func(m member) bool { return m.Island == n })
		if !took && time.Since(w.seen[n]) >= w.i.c.Silence/2 {
			w.seen[n] = time.Time{}
		}
	}
}

// expected returns the islands beside this one that take part. With hurry it takes half of the
// silence for a loss.
func (w *watcher) expected(hurry bool) (who []member) {
	silence := w.i.c.Silence
	if hurry {
		silence /= 2
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, s := range w.others {
		if n != w.i.c.Island && s.State == ready && time.Since(w.seen[n]) < silence {
			who = append(who, member{n, s.Birth})
		}
	}
	return who
}

// all returns all islands as they were last seen.
func (w *watcher) all() (who []member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, s := range w.others {
		if n == w.i.c.Island {
			s = w.mine
		}
		who = append(who, member{n, s.Birth})
	}
	return who
}

// mostPosted returns the greatest number of an exchange that another island has posted, and one
// more.
func (w *watcher) mostPosted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := w.floor
	for n, s := range w.others {
		if n != w.i.c.Island {
			most = max(most, s.Posted)
		}
	}
	return most
}

// errOlderRun is what an island gets that begins from nothing where nobody trains.
var errOlderRun = errors.New("the store has the exchanges of an older run, none of whose islands trains any more, and this island begins from nothing: start a new store, or go on from the checkpoints of the islands")

// partOf waits until another island shows that it trains: else an island that begins from nothing
// would take what an older run has left in the store for its own.
func (w *watcher) partOf(ctx context.Context) error {
	training := func() (counts []int64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for n, s := range w.others {
			if n == w.i.c.Island || s.State != ready {
				s.Count = -1
			}
			counts = append(counts, s.Count)
		}
		return counts
	}
	before := training()
	for range 12 { // eighths of the silence: a sign of life comes in each
		if err := pause(ctx, w.i.c.Silence/8); err != nil {
			return err
		}
		for n, count := range training() {
			if count >= 0 && count != before[n] {
				return nil
			}
		}
	}
	return errOlderRun
}

// ousted is an error if another process has become this island since.
func (w *watcher) ousted() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newest <= w.i.birth {
		return nil
	}
	return w.i.errorf("another process has become island %d, at %v: give each island a number of its own; this process ends", w.i.c.Island, time.Unix(0, w.newest).Format(time.TimeOnly))
}

func (w *watcher) wanted() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.want
}
