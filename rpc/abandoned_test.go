// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// TestAbandonedCalls: a handler that goes on when nobody waits for it any more is
// seen, and named by the shutdown that waits for it.
func TestAbandonedCalls(t *testing.T) {
	deaf := NewMethod[struct{}, struct{}]("abandoned.deaf")
	synctest.Test(t, func(t *testing.T) {
		mem, net, release := store.NewMemory(), NewNetwork(), make(chan struct{})
		var all [2]*Agent
		met := make(chan error)
		for r, name := range []string{"w0", "w1"} {
			go func() {
				var err error
				all[r], err = Init(t.Context(), name, WithStore(mem, r, 2), WithNetwork(net), Serve(deaf, func(context.Context, struct{}) (struct{}, error) {
					<-release
					return struct{}{}, nil
				}))
				met <- err
			}()
		}
		for range all {
			if err := <-met; err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := deaf.Call(ctx, all[0].Peer("w1"), struct{}{}); KindOf(err) != KindTimeout {
			t.Fatal(err)
		}
		synctest.Wait()
		var text bytes.Buffer
		info := all[1].Debug()
		if err := info.WriteText(&text); err != nil || !strings.Contains(text.String(), "given up, not ended") {
			t.Errorf("%v, the page says %s", err, text.String())
		}
		if calls := all[1].InFlight(); len(calls) != 1 || !calls[0].GivenUp || !calls[0].Served || calls[0].Method != "abandoned.deaf" || calls[0].Peer != "w0" || calls[0].Since != time.Second {
			t.Errorf("in flight: %+v", calls)
		}
		late, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		other := make(chan error)
		go func() { other <- all[0].Shutdown(late) }()
		if err := all[1].Shutdown(late); err == nil || !strings.Contains(err.Error(), "abandoned.deaf, called by w0, which has given it up") {
			t.Errorf("a shutdown that waits for a handler: %v", err)
		}
		<-other
		close(release)
		synctest.Wait()
		if calls := all[1].InFlight(); len(calls) != 0 {
			t.Errorf("in flight at the end: %+v", calls)
		}
	})
}
