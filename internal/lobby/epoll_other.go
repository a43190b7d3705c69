// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package lobby

import "net"

// polling returns the driver for a listener of the system: none here.
func polling(*Lobby) driver { return nil }

// peerUser returns the user at the other end of a unix socket: not known here.
func peerUser(net.Conn) (uid int, ok bool) { return 0, false }
