// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// held is a directory in which no file ends before the gate is open.
func held(root string, gate <-chan struct{}) *storage.Directory {
	return storage.Dir(root, storage.WithHook(func(op storage.Op, do func() error) error {
		if op.Kind == storage.OpSync {
			<-gate
		}
		return do()
	}))
}

// TestAsync: tensors, values and files may change when Save has returned, although nothing has
// been written yet.
func TestAsync(t *testing.T) {
	root, gate := t.TempDir(), make(chan struct{})
	var mu sync.Mutex
	var committed []int
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 3, 1)
		if err != nil {
			return err
		}
		loader, text := map[string]int{"position": 7}, "first"
		s.Values["loader"] = loader
		s.Files = func(w *checkpoint.Writer) error { return w.WriteFile("config.json", []byte(text)) }
		saver, err := checkpoint.NewSaver(ctx, g, held(root, gate), checkpoint.SaverOptions{Async: true, Share: 64, Committed: func(step int) {
			mu.Lock()
			defer mu.Unlock()
			committed = append(committed, step)
		}})
		if err != nil {
			return err
		}
		if begun, err := saver.Save(ctx, 1, s); err != nil || !begun {
			return fmt.Errorf("begun %t, %w", begun, err)
		}
		loader["position"], text = 8, "second"
		for _, parts := range s.Sections {
			for _, p := range parts {
				p.Local.Fill(-1)
			}
		}
		if step, ok := saver.Pending(); !ok || step != 1 || saver.Err() != nil {
			return fmt.Errorf("pending %d, %t", step, ok)
		}
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			if steps, err := checkpoint.Steps(ctx, storage.Dir(root)); len(steps) > 0 || err != nil {
				return fmt.Errorf("saved %v, %w", steps, err)
			}
			close(gate)
		}
		if err := saver.Wait(ctx); err != nil {
			return err
		}
		// The second one uses the memory of the first.
		if _, err := saver.Save(ctx, 2, s); err != nil {
			return err
		}
		if err := saver.Close(ctx); err != nil {
			return err
		}
		for step, want := range map[int]float32{1: 1, 2: -1} {
			c, err := checkpoint.Open(ctx, storage.Dir(root), checkpoint.StepName(step))
			if err != nil {
				return err
			}
			if err := c.LoadParts(checkpoint.Model, s.Sections[checkpoint.Model]); err != nil {
				return err
			}
			var position map[string]int
			config, ferr := c.ReadFile("config.json", 100)
			if err := errors.Join(ferr, c.Value("loader", &position)); err != nil {
				return err
			}
			if got := s.Sections[checkpoint.Model][0].Local.Float32s()[1]; got != want || position["position"] != 6+step || string(config) != []string{"first", "second"}[step-1] {
				return fmt.Errorf("step %d has %v, %v, %s", step, got, position, config)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(committed)
	if !slices.Equal(committed, []int{1, 1, 1, 2, 2, 2}) {
		t.Errorf("committed %v", committed)
	}
}

// TestBusySkip: where one rank is still writing, no rank saves.
func TestBusySkip(t *testing.T) {
	root, gate := t.TempDir(), make(chan struct{})
	err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 2, 1)
		if err != nil {
			return err
		}
		saver, err := checkpoint.NewSaver(ctx, g, held(root, gate), checkpoint.SaverOptions{Async: true, Busy: checkpoint.Skip})
		if err != nil {
			return err
		}
		first, err1 := saver.Save(ctx, 1, s)
		second, err2 := saver.Save(ctx, 2, s)
		if g.Rank() == 0 {
			close(gate)
		}
		err3 := saver.Wait(ctx)
		if err := g.Barrier(ctx); err != nil {
			return err
		}
		third, err4 := saver.Save(ctx, 3, s)
		if err := errors.Join(err1, err2, err3, err4, saver.Close(ctx)); err != nil || !first || second || !third {
			return fmt.Errorf("%t %t %t, %w", first, second, third, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps, err := checkpoint.Steps(t.Context(), storage.Dir(root)); err != nil || !slices.Equal(steps, []int{3, 1}) {
		t.Error(steps, err)
	}
}

// TestAsyncError: what one rank cannot write is the error of the next call on all ranks, and the
// saver goes on.
func TestAsyncError(t *testing.T) {
	root, torn := t.TempDir(), errors.New("the disk is torn")
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 3, 1)
		if err != nil {
			return err
		}
		fails := g.Rank() == 2
		to := storage.Dir(root, storage.WithHook(func(op storage.Op, do func() error) error {
			if fails && op.Kind == storage.OpWrite {
				return torn
			}
			return do()
		}))
		saver, err := checkpoint.NewSaver(ctx, g, to, checkpoint.SaverOptions{Async: true})
		if err != nil {
			return err
		}
		if _, err := saver.Save(ctx, 1, s); err != nil {
			return err
		}
		begun, err := saver.Save(ctx, 2, s)
		if begun || err == nil || !strings.Contains(err.Error(), torn.Error()) || g.Rank() != 2 && !strings.Contains(err.Error(), "rank 2: ") {
			return fmt.Errorf("begun %t, %v", begun, err)
		}
		fails = false
		if _, err := saver.Save(ctx, 2, s); err != nil {
			return err
		}
		return saver.Close(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if steps, err := checkpoint.Steps(t.Context(), storage.Dir(root)); err != nil || !slices.Equal(steps, []int{2}) {
		t.Error(steps, err)
	}
}

// TestCloseGivesUp: when the context of Close has ended, nothing is left of the save.
func TestCloseGivesUp(t *testing.T) {
	root := t.TempDir()
	err := dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
		s, err := job(ctx, g, 1, 1)
		if err != nil {
			return err
		}
		saver, err := checkpoint.NewSaver(ctx, g, storage.Dir(root), checkpoint.SaverOptions{Async: true, BytesPerSecond: 1})
		if err != nil {
			return err
		}
		if _, err := saver.Save(ctx, 1, s); err != nil {
			return err
		}
		ended, end := context.WithCancel(ctx)
		end()
		if err := saver.Close(ended); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("closed with %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := storage.Dir(root).List(t.Context(), ""); err != nil || len(entries) > 0 {
		t.Error(entries, err)
	}
}

// TestStagingMemory: tensors that do not lie densely are not all copied twice at a time.
func TestStagingMemory(t *testing.T) {
	const numTensors, rows, columns = 32, 1 << 10, 1 << 10 // of 4 MiB
	s := checkpoint.State{Sections: map[string][]checkpoint.Part{}}
	for i := range numTensors {
		w := tensor.Full(float64(i), rows, columns).Transpose(0, 1)
		s.Sections[checkpoint.Model] = append(s.Sections[checkpoint.Model], checkpoint.Part{Name: fmt.Sprint("w", i), Tensor: mesh.Tensor{Local: w}})
	}
	saver, err := checkpoint.NewSaver(t.Context(), nil, storage.Dir(t.TempDir(), storage.WithoutSync()), checkpoint.SaverOptions{Async: true})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := tensor.MemoryInUse()
	tensor.ResetMemoryPeak()
	if _, err := saver.Save(t.Context(), 1, s); err != nil {
		t.Fatal(err)
	}
	_, peak := tensor.MemoryInUse()
	if want := int64(numTensors+18) * rows * columns * 4; peak-before > want {
		t.Errorf("copying %d MiB took %d MiB, want at most %d", numTensors*rows*columns*4>>20, (peak-before)>>20, want>>20)
	}
	if err := saver.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
