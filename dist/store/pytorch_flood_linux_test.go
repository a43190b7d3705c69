// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/flood"
)

// Strangers of this host who hold a thousand connections and say nothing keep no client of
// PyTorch's store out, old or new.
func TestPyTorchFlooded(t *testing.T) {
	s, _ := pyTorchHost(t)
	old, err := DialPyTorch(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	stop, full := make(chan struct{}), make(chan struct{})
	var strangers sync.WaitGroup
	var made int
	strangers.Go(func() {
		stats, err := flood.Run(flood.Config{Network: "tcp", Address: s.Addr(), Num: 1000}, stop, func() { close(full) })
		if err != nil {
			t.Error(err)
		}
		made = stats.Made
	})
	<-full
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 20 {
		c, err := DialPyTorch(ctx, s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Set(ctx, "k", []byte("v")); err != nil {
			t.Error(err)
		}
		c.Close()
		if v, err := old.Get(ctx, "k"); err != nil || string(v) != "v" {
			t.Errorf("%q, %v", v, err)
		}
	}
	close(stop)
	strangers.Wait()
	t.Logf("%d strangers came", made)
}
