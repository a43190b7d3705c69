// SPDX-License-Identifier: Apache-2.0

package train_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/errorfile"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

// TestResume: a loop of one's own, run on 2, 3 and 1 ranks that are stopped on
// the way, does every step once, and every rank has the weights of the last one.
func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx := t.Context()
	done := 0
	for _, part := range []struct{ ranks, until int }{{2, 4}, {3, 5}, {1, 9}} {
		before := done
		err := dist.Spawn(ctx, part.ranks, func(ctx context.Context, g *dist.Group) error {
			net := nn.NewLinear(&nn.Build{Generator: tensor.NewGenerator(int64(g.Rank()))}, 3, 2)
			step, err := train.Resume(ctx, g, dir, func(ck *checkpoint.Checkpoint) error {
				return ck.LoadTensors(checkpoint.Model, nn.StateDict(net).All())
			})
			if err != nil {
				return err
			}
			if step != before {
				return fmt.Errorf("rank %d goes on from step %d, want %d", g.Rank(), step, before)
			}
			if w := net.Weight.Data().Float32s()[0]; before > 0 && w != float32(before) {
				return fmt.Errorf("rank %d has the weights of step %v, want %d", g.Rank(), w, before)
			}
			for ; step < part.until; step++ {
				if g.Rank() == 0 {
					net.Weight.Data().Fill(float64(step + 1))
					err := checkpoint.Save(ctx, nil, storage.Dir(dir), step+1, checkpoint.State{
						Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(net).All())},
					}, checkpoint.WithRetention(checkpoint.KeepLast(2)))
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%d ranks: %v", part.ranks, err)
		}
		done = part.until
	}
}

// TestResumeErrors: what keeps one rank from going on is an error on all of them.
func TestResumeErrors(t *testing.T) {
	dir := t.TempDir()
	err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), 1, checkpoint.State{
		Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(nn.NewLinear(&nn.Build{}, 1, 1)).All())},
	}, checkpoint.WithRetention(checkpoint.KeepLast(1)))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no room for it")
	resume := func(load func(rank int) error) (errs [2]error) {
		_ = dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			_, errs[g.Rank()] = train.Resume(ctx, g, dir, func(*checkpoint.Checkpoint) error { return load(g.Rank()) })
			return nil
		})
		return errs
	}
	errs := resume(func(rank int) error {
		if rank == 1 {
			return broken
		}
		return nil
	})
	if !errors.Is(errs[1], broken) || isFinal(errs[1]) || errs[0] == nil || !strings.Contains(errs[0].Error(), "rank 1: no room for it") {
		t.Errorf("%v; %v", errs[0], errs[1])
	}
	errs = resume(func(rank int) error {
		if rank == 1 {
			return fmt.Errorf("mine: %w", &checkpoint.StateDictError{})
		}
		return nil
	})
	if !isFinal(errs[1]) || errs[0] == nil {
		t.Errorf("of another model: %v; %v", errs[0], errs[1])
	}
	// All checkpoints are damaged.
	if err := os.Truncate(filepath.Join(checkpoint.Path(dir, 1), checkpoint.ModelFile), 3); err != nil {
		t.Fatal(err)
	}
	var damaged *checkpoint.DamagedError
	if errs = resume(func(int) error { return nil }); !errors.As(errs[0], &damaged) || errs[1] == nil || !strings.Contains(errs[1].Error(), "rank 0: ") {
		t.Errorf("%v; %v", errs[0], errs[1])
	}
}

// isFinal reports whether a launcher would start no rank again for an error.
func isFinal(err error) bool { return errors.As(err, new(*errorfile.Final)) }
