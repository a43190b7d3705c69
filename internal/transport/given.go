// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"net"
)

// DialFunc connects like [net.Dialer.DialContext].
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// WithDialer makes Dial connect through d in place of the system's network, and
// pause between its tries for times that can be foretold: for a network inside
// the process. A nil d is the system's network.
func WithDialer(d DialFunc) DialOption { return func(o *dialing) { o.dialer = d } }

// ListenOn opens a port on a listener that is not of the system's network, and
// owns it.
func ListenOn(ln net.Listener, token Token) (*Port, error) {
	if token.IsZero() {
		return nil, &Error{Op: "listen", Addr: addressOf(ln.Addr()), Err: ErrNoToken}
	}
	secure, err := tlsConfig(token)
	if err != nil {
		return nil, &Error{Op: "listen", Addr: addressOf(ln.Addr()), Err: err}
	}
	p := makePort(ln, token, secure, handshakeTimeout, maxHalfOpen)
	p.open()
	return p, nil
}
