// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/cohort-ml/cohort/internal/transport"
)

// Listen serves a new store on a TCP address, host:port, where port 0 is any
// that is free and no host is all interfaces. It ends with [Server.Close].
//
// Clients prove that they know the token: 64 hexadecimal digits, as `cohort
// token` prints them. An empty token is that of the environment, COHORT_TOKEN or
// COHORT_TOKEN_FILE. Clients of other hosts have to come through TLS, unless
// COHORT_ENCRYPT is none.
func Listen(addr, token string) (*Server, error) {
	t, err := tokenOf(token)
	if err != nil {
		return nil, fmt.Errorf("store: listen on %s: %w", addr, err)
	}
	policy, err := transport.EncryptFromEnv()
	if err != nil {
		return nil, fmt.Errorf("store: listen on %s: %w", addr, err)
	}
	port, err := transport.Listen(addr, t)
	if err != nil {
		return nil, fmt.Errorf("store: listen on %s: %w", addr, err)
	}
	if policy.TLS(false, false) {
		RequireTLS(port)
	}
	s := Serve(port, NewMemory())
	s.owned = true
	return s, nil
}

// Dial connects to a store that [Listen] serves, with the same token, waiting
// for it to be there until ctx ends. Between hosts the connection is encrypted,
// unless COHORT_ENCRYPT is none.
func Dial(ctx context.Context, addr, token string) (*Client, error) {
	t, err := tokenOf(token)
	if err != nil {
		return nil, fmt.Errorf("store: dial %s: %w", addr, err)
	}
	policy, err := transport.EncryptFromEnv()
	if err != nil {
		return nil, fmt.Errorf("store: dial %s: %w", addr, err)
	}
	return Connect(ctx, addr, t, policy)
}

func tokenOf(text string) (transport.Token, error) {
	if text == "" {
		return transport.TokenFromEnv()
	}
	return transport.ParseToken(text)
}

// Addr returns the address at which the store is served: host:port.
func (s *Server) Addr() string { return s.port.Addr() }

// OnRefusal has connections that the server's port turns away, such as of clients with
// another token, reported in a line of text: the first at once, others together, once a
// minute at most, and the rest when the port is closed, from when on there are none.
func (s *Server) OnRefusal(report func(line string)) {
	s.port.OnRefusal(func(r transport.Refusals) { report(r.String()) })
}

// Store returns the store that is served, for use in this process.
func (s *Server) Store() Store { return s.mem }
