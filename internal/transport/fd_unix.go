// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// maxQueuedFDs bounds the descriptors received and not yet taken.
const maxQueuedFDs = 64

// fdQueue keeps the descriptors that came with the bytes read so far.
type fdQueue struct {
	mu     sync.Mutex
	queue  []int
	closed bool
}

// keep queues the descriptors of a control message.
func (q *fdQueue) keep(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var failed error
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if q.closed || len(q.queue) == maxQueuedFDs {
				unix.Close(fd)
				failed = fmt.Errorf("more than %d descriptors wait to be taken", maxQueuedFDs)
				continue
			}
			unix.CloseOnExec(fd)
			q.queue = append(q.queue, fd)
		}
	}
	return failed
}

// take returns the descriptor that came first.
func (q *fdQueue) take() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return -1, errors.New("no descriptor came with the frames read so far")
	}
	fd := q.queue[0]
	q.queue = append(q.queue[:0], q.queue[1:]...)
	return fd, nil
}

// close closes the descriptors that nobody took.
func (q *fdQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, fd := range q.queue {
		unix.Close(fd)
	}
	q.queue = nil
}

// SendFD writes a frame that carries a descriptor, of which the peer gets a
// copy; fd stays the caller's. It is an error on anything but a unix connection.
func (c *Conn) SendFD(kind byte, fd int, payloads ...[]byte) error {
	nc := c.nc
	if f, ok := nc.(*Injector); ok {
		var err error
		if nc, err = f.write(); err != nil {
			return c.fail("send fd", err)
		}
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return c.fail("send fd", errors.New("descriptors travel only over unix sockets"))
	}
	frame := make([]byte, headerSize, 256)
	for _, p := range payloads {
		frame = append(frame, p...)
	}
	appendHeader(frame[:0], kind, len(frame)-headerSize)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return c.werr
	}
	// The descriptor goes with the first byte; a short write is completed
	// without it.
	sending()
	n, _, err := uc.WriteMsgUnix(frame, unix.UnixRights(fd), nil)
	if err == nil && n < len(frame) {
		_, err = uc.Write(frame[n:])
	}
	return c.wrote("send fd", err)
}

// RecvFD returns the descriptor that came with the frame whose header was
// read last (the oldest not yet taken, when several have come). The caller closes it.
func (c *Conn) RecvFD() (int, error) {
	if c.fds == nil {
		return -1, c.fail("receive fd", errors.New("descriptors travel only over unix sockets"))
	}
	fd, err := c.fds.take()
	if err != nil {
		return -1, c.fail("receive fd", err)
	}
	return fd, nil
}
