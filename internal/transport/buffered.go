// SPDX-License-Identifier: Apache-2.0

package transport

import "encoding/binary"

// HeaderSize is how many bytes stand before a frame's payload.
const HeaderSize = headerSize

// PutHeader writes the header of a frame into the first HeaderSize bytes of b.
// Protocols that gather several small frames into one Write make them with it.
func PutHeader(b []byte, kind byte, size int) {
	binary.LittleEndian.PutUint64(b, uint64(kind)<<56|uint64(size))
}

// FrameBuffered says whether the next frame has come as a whole, so that
// reading it waits for nothing. A protocol that gathers its answers writes
// them when it has not. It is for who reads the connection.
func (c *Conn) FrameBuffered() bool {
	come := c.in.buf[c.in.r:c.in.w]
	return c.unread == 0 && len(come) >= headerSize && binary.LittleEndian.Uint64(come)&MaxFrame <= uint64(len(come)-headerSize)
}
