// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// stuck is a storage whose files can be neither opened nor written until free is closed.
type stuck struct {
	storage.Storage
	free chan struct{}
}

func (s stuck) Create(ctx context.Context, name string) (storage.File, error) {
	<-s.free
	return s.Storage.Create(ctx, name)
}

func (s stuck) Open(ctx context.Context, name string) (storage.Object, error) {
	<-s.free
	return s.Storage.Open(ctx, name)
}

// TestStuckStorage: the file system of a rank hangs in a save and in a load. Once their contexts have
// ended, they do not wait long, and name the rank.
func TestStuckStorage(t *testing.T) {
	state := func() checkpoint.State {
		return checkpoint.State{
			Sections:   map[string][]checkpoint.Part{checkpoint.Model: {{Name: "x", Tensor: mesh.Tensor{Local: tensor.Full(1, 3)}}}},
			RankValues: map[string]any{"v": new(int)},
		}
	}
	tensor.CPU() // its threads are not those of virtual time
	if err := checkpoint.Save(t.Context(), nil, storage.Dir(t.TempDir()), 1, state()); err != nil {
		t.Fatal(err)
	}
	for _, save := range []bool{true, false} {
		for _, who := range []int{0, 1} {
			to := storage.Dir(t.TempDir())
			synctest.Test(t, func(t *testing.T) {
				if !save {
					if err := checkpoint.Save(t.Context(), nil, to, 1, state()); err != nil {
						t.Fatal(err)
					}
				}
				free := make(chan struct{})
				start := time.Now()
				var errs [3]error
				var took [3]time.Duration
				_ = dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
					ctx, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					at := storage.Storage(to)
					if g.Rank() == who {
						at = stuck{to, free}
					}
					if save {
						errs[g.Rank()] = checkpoint.Save(ctx, g, at, 1, state())
					} else {
						_, errs[g.Rank()] = checkpoint.Load(ctx, g, at, state())
					}
					took[g.Rank()] = time.Since(start)
					return nil
				})
				close(free)
				for rank, err := range errs {
					if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the storage of rank %d hangs", who)) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("save %v, rank %d hangs: rank %d: %v", save, who, rank, err)
					}
					if took[rank] > time.Minute {
						t.Errorf("save %v: rank %d after %v", save, rank, took[rank])
					}
				}
			})
		}
	}
}
