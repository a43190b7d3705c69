// SPDX-License-Identifier: Apache-2.0

package etcd

import "context"

// Dial connects to a cluster whose members are at endpoints, host:port or URLs, and
// returns the store below root. It waits for one of them to answer until ctx ends.
// From then on the store finds its way back by itself after failures, to whichever
// member lives. close ends the connection.
func Dial(ctx context.Context, endpoints []string, root string, o Options) (s *Store, close func(), err error) {
	c, err := NewClient(endpoints, o)
	if err != nil {
		return nil, nil, err
	}
	s = New(c, root)
	// The client connects when it is first used.
	if _, err := s.NumKeys(ctx, "rendezvous"); err != nil {
		c.Close()
		return nil, nil, err
	}
	return s, c.Close, nil
}
