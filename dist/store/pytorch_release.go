// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/binary"
	"errors"
)

// Releases returns which releases of PyTorch 2 have a server like this one, by what it
// answers: the earliest and the latest minor number, 2.8 and 2.9 for example being 8 and 9.
// latest is 0 for those that have not been told from the newest one. It is about servers of
// PyTorch's, and of the generation [PyTorch2].
func (c *PyTorchClient) Releases(ctx context.Context) (earliest, latest int, err error) {
	ctx, release := deadline(ctx)
	defer release()
	fail := func(err error) (int, int, error) {
		return 0, 0, &Error{Op: "ask for the release", Addr: c.addr, Err: err}
	}
	if c.gen != PyTorch2 {
		return fail(errors.New("it is no PyTorch 2"))
	}
	if !c.pings {
		return 2, 4, nil
	}
	if lists, err := c.has(ctx, verbListKeys); err != nil {
		return fail(err)
	} else if lists {
		return 10, 0, nil
	}
	if queues, err := c.has(ctx, verbQueueLen); err != nil {
		return fail(err)
	} else if queues {
		return 8, 9, nil
	}
	// Without libuv none has queues; with it a key that is missing has an empty value.
	if libuv, err := c.answersMissing(ctx); err != nil {
		return fail(err)
	} else if libuv {
		return 5, 7, nil
	}
	return 5, 9, nil
}

// answersMissing says whether the server has an answer for who gets a key that is not
// there, over a connection of its own: others end that.
func (c *PyTorchClient) answersMissing(ctx context.Context) (bool, error) {
	l, err := c.another(ctx)
	if err != nil {
		return false, err
	}
	defer l.conn.Close()
	c.ask(l, &pyTorchRequest{verb: verbGet, keys: []string{"a key that nobody has"}})
	answer, err := l.exchange(ctx, l.out, 8, probeTime)
	if errors.Is(err, errHungUp) {
		return false, nil
	}
	return err == nil && binary.LittleEndian.Uint64(answer) == 0, err
}
