// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Ask asks the others for their state. It returns the name of the question, which all parts of this
// island give to [Island.TakeState]. Part 0 calls it.
func (i *Island) Ask(ctx context.Context) (name string, err error) {
	name = fmt.Sprintf("%d.%d", i.c.Island, time.Now().UnixNano())
	if err := i.store.Set(ctx, "want", []byte(name)); err != nil {
		return "", i.errorf("ask for the state of the others: %w", err)
	}
	return name, nil
}

// GiveState gives the state of this part after an exchange to an island that has asked for it.
func (i *Island) GiveState(ctx context.Context, name string, after int, state []byte) error {
	if err := i.put(ctx, i.key("state", name, i.c.Part), i.key("stated", name, i.c.Part), state, uint32(after)); err != nil {
		return i.errorf("give the state after exchange %d: %w", after, err)
	}
	return nil
}

// TakeState returns the state of this part that another island has given, and the number of the
// exchange after which it was so. It waits for it, at most [Config.Patience].
func (i *Island) TakeState(ctx context.Context, name string) (state []byte, after int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, i.c.Patience,
		fmt.Errorf("no other island has given its state within %v: is one running, and does it exchange in that time? %w", i.c.Patience, context.DeadlineExceeded))
	defer cancel()
	data := i.key("state", name, i.c.Part)
	state, digest, err := i.get(ctx, data, i.key("stated", name, i.c.Part))
	if err != nil {
		return nil, 0, i.errorf("take the state of the others: %w", err)
	}
	for chunk := range len(state)/chunkBytes + 1 {
		if _, err := i.store.Delete(ctx, i.key(data, chunk)); err != nil {
			return nil, 0, i.errorf("take the state of the others: %w", err)
		}
	}
	if i.watch != nil {
		if _, _, err := i.store.CompareAndSet(ctx, "want", []byte(name), []byte{}); err != nil {
			return nil, 0, i.errorf("take the state of the others: %w", err)
		}
	}
	return state, int(digest), nil
}

// Past returns an exchange that has been decided, nil if there is none of this number in the store. An
// island that comes back takes them one by one.
func (i *Island) Past(ctx context.Context, n int, digest uint32) (*Round, error) {
	fail := func(err error) (*Round, error) { return nil, i.errorf("catch up with exchange %d: %w", n, err) }
	there, err := i.store.NumKeys(ctx, i.key("round", n)+"/")
	if err != nil {
		return fail(err)
	}
	if there == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.c.Patience, errGone)
	defer cancel()
	text, err := i.store.Get(ctx, i.key("round", n, "list"))
	if err != nil {
		return fail(err)
	}
	l, err := i.parse(text, n)
	if err != nil {
		return fail(err)
	}
	r, err := i.read(ctx, n, l, nil, digest, nil)
	if err != nil {
		return fail(err)
	}
	return r, nil
}

var errGone = errors.New("what was exchanged is not in the store any more, because the others exchange faster than this island reads: start it again, or let more exchanges stay (Config.Keep)")

// Ready says that this island takes part: the others wait for it from now on. Part 0 calls it.
func (i *Island) Ready(ctx context.Context) error {
	if i.watch == nil {
		return nil
	}
	if err := i.watch.say(ctx, ready); err != nil {
		return i.errorf("take part: %w", err)
	}
	return nil
}

// Begun returns the number of the exchange after the last one that another island has posted, as
// far as part 0 has seen.
func (i *Island) Begun() int {
	if i.watch == nil {
		return 0
	}
	return i.watch.mostPosted()
}
