// SPDX-License-Identifier: Apache-2.0

//go:build unix

package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxQueuedFDs bounds the descriptors received and not yet taken.
const maxQueuedFDs = 64

// fdReader reads a unix socket and keeps the descriptors that come with the
// bytes. It must do all the reading of the socket: a plain read of a byte that
// carries descriptors drops them, and the buffered reader above reads ahead.
type fdReader struct {
	raw syscall.RawConn

	// the read in progress; fields so that receive is made once
	p       []byte
	n       int
	err     error
	oob     []byte
	msg     message
	receive func(fd uintptr) bool

	mu     sync.Mutex
	queue  []int
	closed bool
}

// newFDReader returns nil when descriptors cannot be passed over nc.
func newFDReader(nc net.Conn) *fdReader {
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil
	}
	r := &fdReader{raw: raw, oob: make([]byte, unix.CmsgSpace(4*maxQueuedFDs))}
	r.receive = func(fd uintptr) bool {
		for {
			n, oobn, flags, err := r.msg.receive(int(fd), r.p, r.oob)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			case nil:
				r.n, r.err = n, nil
				if oobn > 0 {
					r.err = r.keep(r.oob[:oobn])
				}
				if flags&unix.MSG_CTRUNC != 0 && r.err == nil {
					r.err = errors.New("more descriptors in one message than a reader takes")
				}
			default:
				r.n, r.err = 0, os.NewSyscallError("recvmsg", err)
			}
			return true
		}
	}
	return r
}

// Read implements io.Reader.
func (r *fdReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p = p
	err := r.raw.Read(r.receive)
	r.p = nil
	if err != nil {
		return 0, err
	}
	if r.err != nil {
		return 0, r.err
	}
	if r.n == 0 {
		return 0, io.EOF
	}
	return r.n, nil
}

// keep queues the descriptors of a control message.
func (r *fdReader) keep(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed error
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if r.closed || len(r.queue) == maxQueuedFDs {
				unix.Close(fd)
				failed = fmt.Errorf("more than %d descriptors wait to be taken", maxQueuedFDs)
				continue
			}
			unix.CloseOnExec(fd)
			r.queue = append(r.queue, fd)
		}
	}
	return failed
}

// take returns the descriptor that came first.
func (r *fdReader) take() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return -1, errors.New("no descriptor came with the frames read so far")
	}
	fd := r.queue[0]
	r.queue = append(r.queue[:0], r.queue[1:]...)
	return fd, nil
}

// close closes the descriptors that nobody took.
func (r *fdReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, fd := range r.queue {
		unix.Close(fd)
	}
	r.queue = nil
}

// SendFD writes a frame that carries a descriptor, of which the peer gets a
// copy; fd stays the caller's. It is an error on anything but a unix connection.
func (c *Conn) SendFD(kind byte, fd int, payloads ...[]byte) error {
	nc := c.nc
	if f, ok := nc.(*Fault); ok {
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
