// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// TestInitAgain: an agent that has not met the others leaves nothing in the store
// behind: it may come again, and nobody meets it meanwhile.
func TestInitAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, net := store.NewMemory(), NewNetwork()
		start := func(name string, rank, size int, limit time.Duration) (*Agent, error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return Init(ctx, name, WithStore(mem, rank, size), WithNetwork(net), serveBasics())
		}
		// One who is wrong about the size, and comes first, does not decide it.
		for _, size := range []int{3, 2} {
			if _, err := start("w0", 0, size, time.Second); err == nil || !strings.Contains(err.Error(), "have not come") {
				t.Fatalf("alone: %v; want who is missing", err)
			}
		}
		if n, err := mem.NumKeys(t.Context(), ""); err != nil || n != 0 {
			t.Errorf("%d keys are left, %v", n, err)
		}
		other := make(chan *Agent)
		go func() {
			a, err := start("w1", 1, 2, time.Hour)
			if err != nil {
				t.Error(err)
			}
			other <- a
		}()
		time.Sleep(time.Second)
		a, err := start("w0", 0, 2, time.Minute)
		if err != nil {
			t.Fatalf("the second try: %v", err)
		}
		defer a.Close()
		b := <-other
		defer b.Close()
		if _, err := noop.Call(t.Context(), b.Peer("w0"), struct{}{}); err != nil {
			t.Errorf("a call to the one that came again: %v", err)
		}
		// Who finds its place taken takes nothing of the other away.
		if _, err := start("w0", 0, 2, time.Second); KindOf(err) != KindNameTaken {
			t.Errorf("a third one: %v", err)
		}
		if n, err := mem.NumKeys(t.Context(), ""); err != nil || n != 5 {
			t.Errorf("%d keys, %v; want two of each agent, and the size", n, err)
		}
	})
}
