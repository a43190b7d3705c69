// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Dial connects to a cluster whose members are at endpoints, host:port or URLs, and
// returns the store below root. It waits for one of them to answer until ctx ends.
// From then on the store finds its way back by itself after failures, to whichever
// member lives. close ends the connection.
func Dial(ctx context.Context, endpoints []string, root string) (s *Store, close func(), err error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second, PermitWithoutStream: true,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	s = New(c, root)
	// The client connects when it is first used.
	if _, err := s.NumKeys(ctx, "rendezvous"); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return s, func() { _ = c.Close() }, nil
}
