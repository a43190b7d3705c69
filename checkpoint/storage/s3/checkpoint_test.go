// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

var errDead = errors.New("the process is dead")

// mortal is the storage of a process that dies after some operations: then nothing is
// done any more, not even cleaning up. The ranks of the process share left.
type mortal struct {
	storage.Storage
	left *atomic.Int64
}

func (m mortal) dies() error {
	if m.left.Add(-1) < 0 {
		return errDead
	}
	return nil
}

func (m mortal) Create(ctx context.Context, name string) (storage.File, error) {
	if err := m.dies(); err != nil {
		return nil, err
	}
	f, err := m.Storage.Create(ctx, name)
	return mortalFile{f, m}, err
}

type mortalFile struct {
	storage.File
	m mortal
}

func (f mortalFile) Close() error {
	if err := f.m.dies(); err != nil {
		f.File.Abort()
		return err
	}
	return f.File.Close()
}

func (m mortal) Link(ctx context.Context, from, to string) error {
	if err := m.dies(); err != nil {
		return err
	}
	return m.Storage.Link(ctx, from, to)
}

// Commit may be the last thing that the process does: its answer is lost then.
func (m mortal) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	if err := m.dies(); err != nil {
		return err
	}
	return errors.Join(m.Storage.Commit(ctx, stage, name, manifest), m.dies())
}

func (m mortal) Remove(ctx context.Context, name string) error {
	if err := m.dies(); err != nil {
		return err
	}
	return m.Storage.Remove(ctx, name)
}

// stateOf is the state of a run at a step on one of n ranks: a tensor of which each rank
// has rows, one that all have, and one that is not trained.
func stateOf(ctx context.Context, g *dist.Group, n, step int) (checkpoint.State, error) {
	m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp", Size: n})
	if err != nil {
		return checkpoint.State{}, err
	}
	const rows, columns = 12, 2000
	mine := rows / n
	first := float64(step*100_000 + g.Rank()*mine*columns)
	cut := mesh.Tensor{
		Local:  tensor.ArangeOf(tensor.CPU(), tensor.Float64, first, first+float64(mine*columns), 1).Reshape(mine, columns),
		Layout: mesh.Layout{Mesh: m, Shape: []int{rows, columns}, Placements: []mesh.Placement{mesh.Shard(0)}},
	}
	return checkpoint.State{
		Sections: map[string][]checkpoint.Part{
			checkpoint.Model: {
				{Name: "cut", Tensor: cut},
				{Name: "whole", Tensor: mesh.Tensor{Local: tensor.Full(float64(step), 100)}},
				{Name: "frozen", Tensor: mesh.Tensor{Local: tensor.Full(7, 5000)}, Frozen: true},
			},
		},
		Values: map[string]any{"step": step},
	}, nil
}

func bytesOf(p checkpoint.Part) []byte { return p.Local.Contiguous().Buffer().Data }

// checkLoad loads the newest checkpoint on n ranks and compares it with what was saved.
func checkLoad(ctx context.Context, from storage.Storage, n int) (step int, err error) {
	steps := make([]int, n)
	err = dist.Spawn(ctx, n, func(ctx context.Context, g *dist.Group) error {
		got, err := stateOf(ctx, g, n, 0)
		if err != nil {
			return err
		}
		for _, p := range got.Sections[checkpoint.Model] {
			p.Local.Fill(-1)
		}
		value := 0
		got.Values = map[string]any{"step": &value}
		var loaded checkpoint.Loaded
		step, err := checkpoint.Load(ctx, g, from, got, checkpoint.WithLoaded(&loaded))
		if err != nil {
			return err
		}
		steps[g.Rank()] = step
		if step == 0 {
			return nil
		}
		if len(loaded.PassedOver) > 0 {
			return fmt.Errorf("damaged checkpoints were passed over: %v", loaded.PassedOver)
		}
		want, err := stateOf(ctx, g, n, step)
		if err != nil {
			return err
		}
		for i, p := range want.Sections[checkpoint.Model] {
			if !bytes.Equal(bytesOf(p), bytesOf(got.Sections[checkpoint.Model][i])) || value != step {
				return fmt.Errorf("step %d, rank %d: %s was loaded otherwise than it was saved; the value is %d", step, g.Rank(), p.Name, value)
			}
		}
		return nil
	})
	return steps[0], err
}

// TestCheckpoints: runs of two ranks save checkpoints into a bucket of which a tenth of
// the requests fails. Each save has a rival that saves the same step, and may die after
// any of its operations. Exactly one of two that live wins, and the newest checkpoint
// loads, on one to three ranks, and is the old or the new one.
func TestCheckpoints(t *testing.T) {
	s3test.Credentials(t)
	seed := seeded.Of(t)
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("no conditions=%v", ignore), func(t *testing.T) {
			s := s3test.GoFake(t)
			p := s3test.NewProxy(t, s, seed, s3test.Faults{Rate: 0.1, Delay: 3 * time.Millisecond, Late: true, IgnoreConditions: ignore})
			b := mustOpen(t, p.Address("run"))
			r := rand.New(rand.NewPCG(seed, 7))
			newest, numDead := 0, 0
			for step := 1; step <= *numSteps/2; step++ {
				lives := make([]int64, 2)
				errs := make([]chan error, 2)
				for i := range errs {
					lives[i] = 1 << 40
					if r.IntN(2) == 0 {
						lives[i] = r.Int64N(18)
						numDead++
					}
					errs[i] = make(chan error, 1)
					var left atomic.Int64
					left.Store(lives[i])
					go func() {
						errs[i] <- dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
							state, err := stateOf(ctx, g, 2, step)
							if err != nil {
								return err
							}
							return checkpoint.Save(ctx, g, mortal{b, &left}, step, state, checkpoint.WithRetention(checkpoint.KeepLast(2)))
						})
					}()
				}
				first, second := <-errs[0], <-errs[1]
				if first == nil && second == nil || first != nil && second != nil && (lives[0] > 100 || lives[1] > 100) && newest == step {
					t.Errorf("seed %d, step %d: two savers end with %v and %v", seed, step, first, second)
				}
				for i, err := range []error{first, second} {
					if err != nil && lives[i] > 100 && !errors.Is(err, fs.ErrExist) && !strings.Contains(err.Error(), "is there already") {
						t.Errorf("seed %d, step %d: a saver that lives: %v", seed, step, err)
					}
				}
				got, err := checkLoad(t.Context(), b, 1+r.IntN(3))
				if err != nil || got != step && (got != newest || first == nil || second == nil || lives[0] > 100 || lives[1] > 100) {
					t.Fatalf("seed %d, step %d: step %d is the newest after %d, %v; the savers end with %v and %v", seed, step, got, newest, err, first, second)
				}
				newest = got
			}
			t.Logf("%d savers have died; %s", numDead, p)
		})
	}
}
