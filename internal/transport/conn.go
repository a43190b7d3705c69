// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	headerSize = 8
	// MaxFrame is the most bytes that the length field of a frame can say.
	MaxFrame = 1<<56 - 1
	// Frames up to this size are gathered into one buffer and written with one
	// system call; beyond it the copy costs more than a vectored write.
	gatherLimit = 16 << 10
	// ReadFrame trusts a length for this much before the bytes have come.
	firstTrust = 1 << 20
)

// Conn is a connection that carries frames: 8 bytes of header, little endian,
// the kind in the highest byte and the payload's length in the others, then
// the payload.
//
// It is also a plain byte stream: Read and Write see the same bytes, for
// protocols that have a framing of their own. Any number of goroutines may
// write; one at a time may read.
type Conn struct {
	proto string
	nc    net.Conn     // writes, deadlines, Close
	many  vectorWriter // writes of several slices, or nil
	fds   *fdQueue     // nil where descriptors cannot be passed
	asked poller       // for Poll, or nil
	line  Line         // whether the peer's machine answers

	in     reader // of nc, or of what also gathers descriptors from it
	unread int    // of the current frame's payload

	wmu    sync.Mutex
	werr   error // a write that failed part way leaves no place to go on from
	gather []byte
	made   []byte // for what is made while it is written
	vec    [][]byte
	rest   net.Buffers // the part of vec not yet written; a field so that it does not escape per call
}

// NewConn makes a Conn of an established connection, with no handshake. The
// proto only names it in errors.
func NewConn(nc net.Conn, proto string) *Conn {
	c := &Conn{proto: proto, nc: nc}
	if link, ok := nc.(*tlsLink); ok {
		c.many = link
		c.in = reader{src: nc, buf: make([]byte, maxRecord)}
		if _, ok := link.wire.src.(poller); ok {
			c.asked = link
		}
		return c
	}
	src, fds := newSource(nc)
	c.fds, c.in = fds, reader{src: src, buf: make([]byte, readBuffer)}
	if sys, ok := src.(system); ok {
		c.in.sys, c.many = sys, sys
	}
	c.asked, _ = src.(poller)
	return c
}

// Proto returns what the connection carries.
func (c *Conn) Proto() string { return c.proto }

// Peer returns the other side's address, for messages.
func (c *Conn) Peer() string { return addressOf(c.nc.RemoteAddr()) }

// LocalAddr returns this side's address.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// Sheltered reports whether the connection goes through TLS or stays on this host, so that it cannot be read
// between hosts.
func (c *Conn) Sheltered() bool {
	_, secure := c.nc.(*tlsLink)
	return secure || sameHost(c.nc)
}

// RemoteAddr returns the other side's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetDeadline bounds reads and writes, those in progress too.
func (c *Conn) SetDeadline(t time.Time) error { return c.nc.SetDeadline(t) }

// SetReadDeadline bounds reads. A header read that ran into it may be tried again.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline bounds writes. After one that ran into it nothing can be written.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// Close closes the connection; reads and writes in progress fail.
func (c *Conn) Close() error {
	err := c.nc.Close()
	if c.fds != nil {
		c.fds.close()
	}
	return err
}

// WriteFrame writes one frame whose payload is the payloads end to end. It
// returns when the system has taken all of it; the slices may then be used again.
func (c *Conn) WriteFrame(kind byte, payloads ...[]byte) error {
	size := 0
	for _, p := range payloads {
		size += len(p)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return c.werr
	}
	c.gather = appendHeader(c.gather[:0], kind, size)
	if headerSize+size <= gatherLimit {
		for _, p := range payloads {
			c.gather = append(c.gather, p...)
		}
		sending()
		_, err := c.nc.Write(c.gather)
		return c.wrote("write", err)
	}
	c.vec = append(c.vec[:0], c.gather)
	for _, p := range payloads {
		if len(p) > 0 {
			c.vec = append(c.vec, p)
		}
	}
	var err error
	if c.many != nil {
		err = c.many.writev(c.vec)
	} else {
		c.rest = c.vec
		_, err = c.rest.WriteTo(c.nc)
	}
	clear(c.vec)
	return c.wrote("write", err)
}

// wrote keeps a failure of a write, which may have stopped within a frame.
func (c *Conn) wrote(op string, err error) error {
	if err != nil {
		c.werr = c.fail(op, err)
	}
	return c.werr
}

func appendHeader(b []byte, kind byte, size int) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(kind)<<56|uint64(size))
}

// Write writes bytes outside any frame.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return 0, c.werr
	}
	sending()
	n, err := c.nc.Write(p)
	return n, c.wrote("write", err)
}

// madePiece is about how many bytes of what is made while it is written are made at once.
const madePiece = 64 << 10

// madeWriter is a connection in whose own memory bytes can be made.
type madeWriter interface {
	writeMade(n, unit int, fill func(p []byte, at int) error) error
}

// WriteMade writes n bytes that fill makes while those before are on their way: a multiple of
// unit bytes in each call, from at on. Where the connection has memory of its own, fill
// writes there.
func (c *Conn) WriteMade(n, unit int, fill func(p []byte, at int) error) error {
	if unit <= 0 || n%unit != 0 {
		return c.fail("write", fmt.Errorf("%d bytes in units of %d", n, unit))
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return c.werr
	}
	if m, ok := c.nc.(madeWriter); ok {
		return c.wrote("write", m.writeMade(n, unit, fill))
	}
	sending()
	return c.wrote("write", c.writeAhead(n, max(unit, 2*madePiece/unit*unit), fill))
}

// writeAhead writes n bytes in pieces: each is made while the one before is written, which
// the system copies.
func (c *Conn) writeAhead(n, piece int, fill func(p []byte, at int) error) error {
	piece = min(n, piece)
	pieces := (n + piece - 1) / piece
	both := min(pieces, 2)
	if cap(c.made) < both*piece {
		c.made = make([]byte, both*piece)
	}
	part := func(k int) []byte { return c.made[k%2*piece:][:min(piece, n-k*piece)] }
	if err := fill(part(0), 0); err != nil {
		return err
	}
	var made chan error
	if pieces > 1 {
		made = make(chan error, 1)
	}
	for k := range pieces {
		more := k+1 < pieces
		if more {
			go func() { made <- fill(part(k+1), (k+1)*piece) }()
		}
		_, err := c.nc.Write(part(k))
		if more {
			if ferr := <-made; err == nil {
				err = ferr
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Read reads bytes whatever frame they belong to.
func (c *Conn) Read(p []byte) (int, error) { return c.in.Read(p) }

// ReadHeader waits for the next frame and returns its kind and the number of
// bytes of payload, at most limit, which ReadPayload then gets. At the end of
// the stream the error is io.EOF. A frame over the limit is
// ErrFrameTooLarge; the connection is then of no more use.
func (c *Conn) ReadHeader(limit int) (kind byte, size int, err error) {
	if c.unread != 0 {
		return 0, 0, c.fail("read", fmt.Errorf("%d bytes of the last frame have not been read", c.unread))
	}
	head, err := c.in.peek(headerSize)
	if err != nil {
		if len(head) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, c.fail("read", err)
	}
	word := binary.LittleEndian.Uint64(head)
	kind, length := byte(word>>56), word&MaxFrame
	if limit < 0 || length > uint64(limit) || length > math.MaxInt {
		return 0, 0, c.fail("read", fmt.Errorf("%w: kind %d, %d bytes, limit %d", ErrFrameTooLarge, kind, length, limit))
	}
	if _, err := c.in.discard(headerSize); err != nil {
		return 0, 0, c.fail("read", err)
	}
	c.unread = int(length)
	return kind, c.unread, nil
}

// ReadPayload fills p with the next bytes of the current frame's payload, of
// which there must be as many. Large parts go from the system into p directly.
func (c *Conn) ReadPayload(p []byte) error {
	if len(p) > c.unread {
		return c.fail("read", fmt.Errorf("%d bytes wanted of a frame with %d left", len(p), c.unread))
	}
	n, err := c.in.full(p)
	c.unread -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return c.fail("read", err)
	}
	return nil
}

// Begun reports whether a frame has begun to come, waiting for it at most until
// the read deadline; err is nil if it has not come by then.
func (c *Conn) Begun() (bool, error) {
	_, err := c.in.peek(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	if err != nil {
		return false, c.fail("read", err)
	}
	return true, nil
}

// AwaitEnd waits until the peer has ended the connection, or has sent more than the read buffer holds, at most
// until the read deadline. It returns false if neither has come by then. kind is the kind of the first frame
// that has begun to come, 0 if there is none.
func (c *Conn) AwaitEnd() (kind byte, ended bool) {
	for n := 1; n <= len(c.in.buf); n = c.in.w - c.in.r + 1 {
		if _, err := c.in.peek(n); errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, false
		} else if err != nil {
			break
		}
	}
	if head, err := c.in.peek(min(headerSize, c.in.w-c.in.r)); err == nil && len(head) == headerSize {
		kind = byte(binary.LittleEndian.Uint64(head) >> 56)
	}
	return kind, true
}

// Unread returns how many bytes of the current frame have not been read.
func (c *Conn) Unread() int { return c.unread }

// Discard skips what is left of the current frame.
func (c *Conn) Discard() error {
	n, err := c.in.discard(c.unread)
	c.unread -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return c.fail("read", err)
	}
	return nil
}

// ReadFrame reads a whole frame into buf, or into a longer slice when it does
// not fit, which grows only as the bytes arrive.
func (c *Conn) ReadFrame(buf []byte, limit int) (kind byte, payload []byte, err error) {
	kind, size, err := c.ReadHeader(limit)
	if err != nil {
		return 0, nil, err
	}
	if size <= cap(buf) {
		payload = buf[:size]
		return kind, payload, c.ReadPayload(payload)
	}
	payload = make([]byte, min(size, firstTrust))
	for read := 0; ; {
		if err := c.ReadPayload(payload[read:]); err != nil {
			return 0, nil, err
		}
		read = len(payload)
		if read == size {
			return kind, payload, nil
		}
		longer := make([]byte, min(size, 4*read))
		copy(longer, payload)
		payload = longer
	}
}

// Do calls f, whose reads and writes on c end with an error when ctx is done.
// The error is then ctx's, wrapped, the connection's deadlines are cleared,
// and it is fit only for Close: a frame may have been left half done. It is
// the whole connection that ctx bounds, not f's part of it alone.
func (c *Conn) Do(ctx context.Context, f func() error) error {
	if ctx.Done() == nil {
		return f()
	}
	if err := ctx.Err(); err != nil {
		return c.fail("use", ctxerr.Of(ctx))
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.nc.SetDeadline(time.Unix(1, 0))
		close(cut)
	})
	err := f()
	if stop() {
		return err
	}
	<-cut
	c.nc.SetDeadline(time.Time{})
	if err != nil {
		return fmt.Errorf("%w: %w", err, ctxerr.Of(ctx))
	}
	return nil
}

// fail wraps an error with what it concerns.
func (c *Conn) fail(op string, err error) error {
	var already *Error
	if errors.As(err, &already) {
		return err
	}
	return &Error{Op: op, Proto: c.proto, Addr: c.Peer(), Err: plain(err)}
}

// ErrAlert is the cause of the end of a TLS connection whose other side could not
// read what came.
var ErrAlert = errors.New("the other side could not read what came")

// plain takes away the addresses that package net puts before a cause: Error has them.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		if op.Op == "remote error" { // as crypto/tls says
			return fmt.Errorf("%w: %w", ErrAlert, op.Err)
		}
		return op.Err
	}
	return err
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// HeaderSize is how many bytes stand before a frame's payload.
const HeaderSize = headerSize

// PutHeader writes the header of a frame into the first HeaderSize bytes of b.
// Protocols that gather several small frames into one Write make them with it.
func PutHeader(b []byte, kind byte, size int) {
	binary.LittleEndian.PutUint64(b, uint64(kind)<<56|uint64(size))
}

// FrameBuffered says whether the next frame has come as a whole, so that
// reading it waits for nothing. A protocol that gathers its answers writes them when it has not. Only the
// goroutine that reads the connection may call it.
func (c *Conn) FrameBuffered() bool {
	come := c.in.buf[c.in.r:c.in.w]
	return c.unread == 0 && len(come) >= headerSize && binary.LittleEndian.Uint64(come)&MaxFrame <= uint64(len(come)-headerSize)
}
