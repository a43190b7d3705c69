// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
)

// A connection through shared memory begins as one over a unix socket: the
// dialling side sends a memory file, the other says that it has it, and the two
// frames are all that ever goes over the socket but bells.
const (
	frameMemory byte = 1 // carries the descriptor; payload: memoryVersion
	frameMapped byte = 2
)

// memoryVersion is that of the rings' layout.
const memoryVersion = 1

// errNoMemory is why there is no connection through shared memory here.
var errNoMemory = errors.New("connections through shared memory need Linux's memory files, and two processes that meet over a unix socket")

// DialShared is Dial to a unix address, for a protocol whose handler there calls
// [AcceptShared]. The Conn that it returns moves its bytes through memory that
// both processes have mapped, [SharedMemory] says whether there is such a thing
// here.
//
// It is a Conn like any other, but that it carries no descriptors. A frame
// costs no system call as long as the peer is looking; large payloads are
// copied twice, by both processes at the same time, or once.
func DialShared(ctx context.Context, addr, proto string, token Token, options ...DialOption) (*Conn, error) {
	c, err := Dial(ctx, addr, proto, token, options...)
	if err != nil {
		return nil, err
	}
	return over(ctx, c, c.offerMemory)
}

// AcceptShared makes a connection that the peer has opened by [DialShared] one
// through shared memory. It takes c over, and closes it if that fails.
func AcceptShared(ctx context.Context, c *Conn) (*Conn, error) {
	return over(ctx, c, c.acceptMemory)
}

// over runs one side of the agreement on memory.
func over(ctx context.Context, c *Conn, side func() (*Conn, error)) (*Conn, error) {
	var shared *Conn
	err := c.Do(ctx, func() (err error) {
		shared, err = side()
		return err
	})
	if err != nil {
		c.Close()
		if shared != nil {
			shared.Close()
		}
		return nil, c.fail("share memory", err)
	}
	if c.fds != nil {
		c.fds.close()
	}
	return shared, nil
}
