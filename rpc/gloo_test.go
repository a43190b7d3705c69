// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

// TestGroupWithPyTorch: a group with a rank of PyTorch, of which there are no agents,
// is refused at once. A Go rank plays it, whose word that it is one has gone.
func TestGroupWithPyTorch(t *testing.T) {
	t.Setenv("COHORT_TOKEN", agenttest.Token)
	t.Setenv("GLOO_SOCKET_IFNAME", "lo")
	path := filepath.Join(t.TempDir(), "store")
	url := "file://" + path
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var groups [2]*dist.Group
	var wg sync.WaitGroup
	for r := range groups {
		wg.Go(func() {
			g, err := dist.Init(ctx, dist.WithBackend("gloo"), dist.WithURL(fmt.Sprintf("%s?rank=%d&world_size=2", url, r)))
			if err != nil {
				t.Error(err)
			}
			groups[r] = g
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, g := range groups {
		defer g.Close()
	}
	if theirs, err := groups[1].PyTorchRanks(ctx); err != nil || len(theirs) > 0 {
		t.Errorf("in a group of Go ranks %v are PyTorch's, %v", theirs, err)
	}
	keys, err := store.OpenPyTorchFile(path, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	if there, err := store.Prefix(keys, "default_pg").Delete(ctx, "cohort/rank/0"); err != nil || !there {
		t.Fatalf("what rank 0 says of itself was there: %v, %v", there, err)
	}
	_, err = Init(ctx, "w1", WithGroup(groups[1]))
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "ranks of PyTorch, [0]") || !strings.Contains(err.Error(), "native") {
		t.Errorf("agents of a group with a rank of PyTorch: %v; want the rank, and what to do", err)
	}
}
