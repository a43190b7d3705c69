// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// SharedMemory says whether [DialShared] and [AcceptShared] work on this system.
const SharedMemory = true

// offerMemory makes the memory and hands it to the peer.
func (c *Conn) offerMemory() (*Conn, error) {
	sock, ok := c.nc.(*net.UnixConn)
	if !ok {
		return nil, errNoMemory
	}
	fd, memory, err := newMemory(linkSize)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	link, err := newMemoryLink(sock, memory, true)
	if err == nil {
		err = c.SendFD(frameMemory, fd, []byte{memoryVersion})
	}
	if err == nil {
		var kind byte
		if kind, _, err = c.ReadHeader(0); err == nil && kind != frameMapped {
			err = fmt.Errorf("frame of kind %d in answer to shared memory, want %d", kind, frameMapped)
		}
	}
	if err != nil {
		_ = unix.Munmap(memory)
		return nil, err
	}
	return NewConn(link, c.proto), nil
}

// acceptMemory takes the memory that the peer has made.
func (c *Conn) acceptMemory() (*Conn, error) {
	sock, ok := c.nc.(*net.UnixConn)
	if !ok {
		return nil, errNoMemory
	}
	kind, payload, err := c.ReadFrame(nil, 16)
	if err != nil {
		return nil, err
	}
	if kind != frameMemory || len(payload) != 1 || payload[0] != memoryVersion {
		return nil, fmt.Errorf("frame of kind %d, % x: want shared memory of version %d", kind, payload, memoryVersion)
	}
	fd, err := c.RecvFD()
	if err != nil {
		return nil, err
	}
	memory, err := openMemory(fd, linkSize)
	unix.Close(fd)
	if err != nil {
		return nil, err
	}
	link, err := newMemoryLink(sock, memory, false)
	if err == nil {
		err = c.WriteFrame(frameMapped)
	}
	if err != nil {
		_ = unix.Munmap(memory)
		return nil, err
	}
	return NewConn(link, c.proto), nil
}
