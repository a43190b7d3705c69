// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

// TestLeavingIsNoLoss: OnPeerLost does not take the end of a shutdown, which is
// everybody's, for a peer that has died.
func TestLeavingIsNoLoss(t *testing.T) {
	agenttest.Over(t, func(t *testing.T, kind string) {
		a := agents(t, kind, 3, serveBasics())
		for _, x := range a {
			x.OnPeerLost(func(p *Peer, err error) { t.Errorf("%s lost %v: %v", x.Name(), p, err) })
			for _, p := range x.Peers() {
				if _, err := noop.Call(t.Context(), p, struct{}{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wg sync.WaitGroup
		for _, x := range a {
			wg.Go(func() {
				if err := x.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
