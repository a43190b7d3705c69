// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// TestGlooCloseWhileForming: a group that is being made ends with the one that it is made
// from, though nothing says that the others will not come.
func TestGlooCloseWhileForming(t *testing.T) {
	s := store.NewMemory()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var groups [2]*Group
	var all sync.WaitGroup
	for r := range groups {
		all.Go(func() {
			var err error
			if groups[r], err = Init(ctx, WithBackend("gloo"), WithStore(s), WithRank(r, 2)); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	defer groups[1].Close()
	made := make(chan error, 1)
	go func() {
		_, err := groups[0].NewGroup(ctx, []int{0, 1})
		made <- err
	}()
	if err := store.Prefix(groups[0].keys, "0//1//cpu/").Wait(ctx, "0/0"); err != nil { // it is under way
		t.Fatal(err)
	}
	if err := groups[0].Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-made:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want that the group is closed", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the new group is still being made")
	}
}
