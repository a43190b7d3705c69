// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package transport

// SharedMemory says whether [DialShared] and [AcceptShared] work on this system.
const SharedMemory = false

func (c *Conn) offerMemory() (*Conn, error) { return nil, errNoMemory }

func (c *Conn) acceptMemory() (*Conn, error) { return nil, errNoMemory }
