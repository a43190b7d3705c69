// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
)

const (
	readBuffer = 8 << 10
	// readAhead is for how many bytes of the next frame there is room behind a
	// long payload: its header and the first words. More would be copied twice.
	readAhead = 256
)

// system is what the sockets of this operating system can do beyond net.Conn.
type system interface {
	// readv reads into p, and into spare what comes after. At least sure bytes
	// are certain to come, so that a wait may last until they have.
	readv(p, spare []byte, sure int) (int, error)
	vectorWriter
}

type vectorWriter interface {
	// writev writes all of bufs, whose elements it changes.
	writev(bufs [][]byte) error
}

// reader is the buffered reading side of a connection.
type reader struct {
	src io.Reader
	sys system // the same when it is a socket, or nil
	err error  // comes after what is in the buffer

	buf  []byte
	r, w int
}

// fill reads more bytes, of which sure are certain to come, into the buffer.
func (b *reader) fill(sure int) error {
	if b.err != nil {
		err := b.err
		b.err = nil
		return err
	}
	if b.r > 0 {
		b.w = copy(b.buf, b.buf[b.r:b.w])
		b.r = 0
	}
	var n int
	var err error
	if b.sys != nil {
		n, err = b.sys.readv(b.buf[b.w:], nil, sure)
	} else {
		n, err = b.src.Read(b.buf[b.w:])
	}
	b.w += n
	if n > 0 {
		b.err = err
		return nil
	}
	return err
}

// peek returns the next n bytes, or as many as came before an error.
func (b *reader) peek(n int) ([]byte, error) {
	for b.w-b.r < n {
		if err := b.fill(n - (b.w - b.r)); err != nil {
			return b.buf[b.r:b.w], err
		}
	}
	return b.buf[b.r : b.r+n], nil
}

// full fills p, large parts of it from the system directly.
func (b *reader) full(p []byte) (n int, err error) {
	n = b.take(p)
	for n < len(p) && err == nil {
		rest := p[n:]
		switch {
		case b.err != nil || b.sys == nil && len(rest) < len(b.buf):
			if err = b.fill(len(rest)); err == nil {
				n += b.take(rest)
			}
		case b.sys == nil:
			var m int
			if m, err = b.src.Read(rest); m == len(rest) {
				b.err, err = err, nil
			}
			n += m
		default:
			spare := b.buf
			if len(rest) > len(b.buf) {
				spare = spare[:readAhead]
			}
			var m int
			if m, err = b.sys.readv(rest, spare, len(rest)); m > len(rest) {
				b.w = m - len(rest)
				m = len(rest)
			}
			n += m
		}
	}
	return n, err
}

// take moves what is in the buffer to p.
func (b *reader) take(p []byte) int {
	n := copy(p, b.buf[b.r:b.w])
	b.r += n
	if b.r == b.w {
		b.r, b.w = 0, 0
	}
	return n
}

// discard skips n bytes.
func (b *reader) discard(n int) (skipped int, err error) {
	for {
		m := min(n-skipped, b.w-b.r)
		b.r += m
		skipped += m
		if skipped == n {
			return skipped, nil
		}
		if err := b.fill(min(n-skipped, len(b.buf))); err != nil {
			return skipped, err
		}
	}
}

// Read implements io.Reader.
func (b *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b.r == b.w {
		if len(p) >= len(b.buf) && b.err == nil {
			return b.src.Read(p)
		}
		if err := b.fill(1); err != nil {
			return 0, err
		}
	}
	return b.take(p), nil
}
