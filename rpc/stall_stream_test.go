// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/link"
	"github.com/cohort-ml/cohort/tensor"
)

var stallStream = NewStream[*tensor.Tensor, struct{}]("stall.stream")

// TestStalledStream: a peer that takes nothing holds no Send longer than its context,
// or the agent's limit, and the time after which its connection is given up.
func TestStalledStream(t *testing.T) {
	for _, size := range []int{1, 1000, 1 << 20} { // written with others, alone, from where they are
		for _, limited := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %v", size, limited), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, far := newLiar(t, 10*time.Second)
					defer far.Close()
					defer p.agent.Close()
					rescue := time.AfterFunc(time.Hour, func() { far.Close() })
					defer rescue.Stop()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					s, err := stallStream.Open(ctx, p)
					want := 10 * time.Second
					if limited {
						want = time.Second
					}
					for err == nil {
						ctx, cancel := ctx, context.CancelFunc(func() {})
						if limited {
							ctx, cancel = context.WithTimeout(ctx, want)
						}
						began := time.Now()
						err = s.Send(ctx, tensor.Zeros(size))
						if took := time.Since(began); took > want+link.StallTime {
							t.Errorf("a message of %d elements: %v after %v, want no more than %v", size, err, took, want+link.StallTime)
						}
						cancel()
					}
					if KindOf(err) != KindLost {
						t.Errorf("%v; want a connection that is lost", err)
					}
				})
			})
		}
	}
}
