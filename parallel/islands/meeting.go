// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// Standing is how far an island is.
type Standing struct {
	Next   int    // the number of its next exchange
	Digest uint32 // of what all islands have alike at that point
}

// card is what an island says of itself.
type card struct {
	Settings string
	Parts    int
	Standing Standing
}

// Meet has this island join the others. At the start of a run it waits until all islands are there,
// at most [Config.Patience]. Islands that have done fewer exchanges than others are behind, and so
// is an island that comes when the others have begun: they call [Island.Ask] and [Island.TakeState].
//
// Part 0 of an island calls it. The other parts call [Follow] afterwards.
func Meet(ctx context.Context, c Config, at Standing) (i *Island, behind bool, err error) {
	c, err = c.resolve()
	if err != nil {
		return nil, false, err
	}
	i = &Island{c: c, tells: newTeller(c), hurry: make(chan struct{}, 1), store: store.Prefix(c.Store, "islands/"+c.Run+"/")}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Patience, fmt.Errorf("not all islands came within %v: %w", c.Patience, context.DeadlineExceeded))
	defer cancel()
	self := card{c.Settings, c.Parts, at}
	mine, err := json.Marshal(self)
	if err != nil {
		return nil, false, i.errorf("describe it: %w", err)
	}
	if err := i.alone(ctx); err != nil {
		return nil, false, err
	}
	i.birth = time.Now().UnixNano()
	i.watch = newWatcher(i)
	begun, err := i.store.NumKeys(ctx, "begun")
	if err != nil {
		return nil, false, i.errorf("come to the others: %w", err)
	}
	if begun == 0 {
		i.watch.mine.State = ready // the others wait for it in their first exchange
	}
	born := strconv.AppendInt(nil, i.birth, 10)
	if err := i.store.MultiSet(ctx, []string{i.key("card", c.Island), i.key("alive", c.Island), i.key("born", c.Island, "at")}, [][]byte{mine, i.watch.beat(), born}); err != nil {
		return nil, false, i.errorf("come to the others: %w", err)
	}
	first, err := i.first(ctx, self, begun > 0)
	if err != nil {
		return nil, false, err
	}
	if err := i.compare(first, self); err != nil {
		return nil, false, err
	}
	if at.Next < first.Standing.Next {
		i.watch.floor = first.Standing.Next + 1
	}
	if err := i.watch.start(ctx); err != nil {
		return nil, false, err
	}
	if err := i.watch.ousted(); err != nil {
		i.Close()
		return nil, false, err
	}
	if behind = at.Next < first.Standing.Next || first.begun; behind {
		err = i.watch.say(ctx, coming)
	}
	if err == nil && first.begun && at.Next == 0 {
		err = i.watch.partOf(ctx)
	}
	if err != nil {
		i.Close()
		return nil, false, i.errorf("come to the others: %w", err)
	}
	return i, behind, nil
}

// alone fails if another process is this island already, and lives.
func (i *Island) alone(ctx context.Context) error {
	fail := func(err error) error { return i.errorf("look for an earlier start of it: %w", err) }
	if before, err := i.store.NumKeys(ctx, i.key("born", i.c.Island)+"/"); err != nil || before == 0 {
		if err != nil {
			return fail(err)
		}
		return nil
	}
	look := func() (s sign, err error) {
		text, err := i.store.Get(ctx, i.key("alive", i.c.Island))
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		return s, err
	}
	first, err := look()
	if err != nil || first.State == left {
		if err != nil {
			return fail(err)
		}
		return nil
	}
	for range 4 { // eighths of the silence: a sign of life comes in each
		if err := pause(ctx, i.c.Silence/8); err != nil {
			return fail(err)
		}
		now, err := look()
		if err != nil {
			return fail(err)
		}
		if now.Count != first.Count && now.State != left {
			return i.errorf("another process is island %d already, and lives: give each island a number of its own, or end that process first", i.c.Island)
		}
	}
	return nil
}

// Follow is Meet for the parts of an island beside part 0, once that has met the others. birth is
// that of part 0.
func Follow(c Config, birth int64) (*Island, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	return &Island{c: c, birth: birth, tells: newTeller(c), hurry: make(chan struct{}, 1), store: store.Prefix(c.Store, "islands/"+c.Run+"/")}, nil
}

// beginning is the card with which a run has begun.
type beginning struct {
	card
	By    int  // the island whose card it is
	begun bool // before this island came
}

// first returns the card with which the run begins: that of the island which has done most
// exchanges. The islands wait for each other.
func (i *Island) first(ctx context.Context, mine card, begun bool) (b beginning, err error) {
	var keys []string
	for n := range i.c.Islands {
		keys = append(keys, i.key("card", n))
	}
	if begun {
		text, err := i.store.Get(ctx, "begun")
		if err == nil {
			err = json.Unmarshal(text, &b)
		}
		if err != nil {
			return b, i.errorf("read how the run began: %w", err)
		}
		b.begun = true
		return b, nil
	}
	var texts [][]byte
	err = i.telling(ctx, func() (err error) {
		texts, err = i.store.MultiGet(ctx, keys...)
		return err
	})
	if absent := i.absent(err); absent != nil {
		return b, i.errorf("wait for the others, of which %s did not come: %w", numbers(absent), err)
	}
	if err != nil {
		return b, i.errorf("wait for the others: %w", err)
	}
	for n, text := range texts {
		var c card
		if err := json.Unmarshal(text, &c); err != nil {
			return b, i.errorf("read what island %d says of itself: %w", n, err)
		}
		if n == 0 || c.Standing.Next > b.Standing.Next {
			b.card, b.By = c, n
		}
		if err := i.compare(beginning{card: c, By: n}, mine); err != nil {
			return b, err // on both islands
		}
	}
	text, err := json.Marshal(b)
	if err != nil {
		return b, i.errorf("say how the run begins: %w", err)
	}
	// Whoever comes first says it: an island that was started again meanwhile may have another card.
	now, _, err := i.store.CompareAndSet(ctx, "begun", nil, text)
	if err == nil {
		err = json.Unmarshal(now, &b)
	}
	if err != nil {
		return b, i.errorf("say how the run begins: %w", err)
	}
	return b, nil
}

// absent returns the islands for which a wait for cards was in vain.
func (i *Island) absent(err error) (who []int) {
	var e *store.Error
	if !errors.As(err, &e) {
		return nil
	}
	for n := range i.c.Islands {
		if slices.ContainsFunc(e.Keys, func(k string) bool { return strings.HasSuffix(k, i.key("card", n)) }) {
			who = append(who, n)
		}
	}
	return who
}

// compare fails for an island that is not like that with which the run began.
func (i *Island) compare(b beginning, mine card) error {
	switch {
	case b.Settings != mine.Settings:
		return i.errorf("island %d has the settings %s, and this one %s: give all islands the same, and start a new store if a run is to go on with other settings", b.By, b.Settings, mine.Settings)
	case b.Parts != mine.Parts:
		return i.errorf("island %d exchanges in %d parts, and this one in %d: spread the model over as many ranks on all islands", b.By, b.Parts, mine.Parts)
	case b.Standing.Next == mine.Standing.Next && !b.begun && b.Standing.Digest != mine.Standing.Digest:
		return i.errorf("after %d exchanges its outer parameters differ from those of island %d: begin with the same seed, or from the same checkpoint, on all islands", mine.Standing.Next, b.By)
	}
	return nil
}

// Leave says that this island has done its work, so that nobody waits for it. Part 0 calls it.
func (i *Island) Leave(ctx context.Context) error {
	if i.watch == nil {
		return nil
	}
	if err := i.watch.say(ctx, left); err != nil {
		return i.errorf("leave: %w", err)
	}
	return nil
}

// Close ends the signs of life. The others go on without this island after their silence, unless
// it has left.
func (i *Island) Close() {
	i.closing.Do(func() {
		if i.watch != nil {
			i.watch.stop()
		}
	})
}

// key returns a key of an island.
func (i *Island) key(kind string, of ...any) string {
	s := kind
	for _, o := range of {
		s += fmt.Sprintf("/%v", o)
	}
	return s
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
}
