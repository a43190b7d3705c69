// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
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
					a, err := Init(t.Context(), "a", WithNetwork(NewNetwork()), WithStore(store.NewMemory(), 0, 1), WithTimeout(10*time.Second))
					if err != nil {
						t.Fatal(err)
					}
					defer a.Close()
					near, far := transport.Pipe(proto)
					defer far.Close()
					p := &Peer{agent: a, name: "liar", rank: 1}
					l := newLink(a, p, near, "pipe", 1<<30)
					a.links[l] = struct{}{}
					a.running.Go(l.receive)
					p.link.Store(l)
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
						if took := time.Since(began); took > want+stallTime {
							t.Errorf("a message of %d elements: %v after %v, want no more than %v", size, err, took, want+stallTime)
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
