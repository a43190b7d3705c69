// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/storagetest"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestCrashes: whatever happens to a save, the newest checkpoint verifies and loads, and is
// the old one or the new one, whole. A save that has returned without an error is there. The
// next save works and leaves nothing behind.
//
//	go test ./checkpoint/trials -run TestCrashes -trials 1000 -v
func TestCrashes(t *testing.T) {
	seed := seeded.Of(t)
	count := make(map[string]int)
	trials(t, 60, func(i int) error {
		c := drawCrash(t, seed<<32+uint64(i))
		defer os.RemoveAll(c.path)
		what, err := c.try(t)
		count[what]++
		if err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		return nil
	})
	for _, what := range sortedKeys(count) {
		t.Logf("%5d %s", count[what], what)
	}
}

// crash is a save that is disturbed.
type crash struct {
	kind      string
	draws     []tensorDraw
	axes      []mesh.Axis
	numBefore int // checkpoints that are there
	keep      int
	async     bool
	seed      uint64
	path      string
	machine   *storagetest.Machine
	victim    *victim // nil for none
}

// kinds are what happens.
var kinds = []string{
	"all ranks killed", "all ranks killed", "power failure", "power failure", "power failure", "one rank killed", "one rank killed",
	"disk full", "disk broken",
}

func drawCrash(t *testing.T, seed uint64) *crash {
	r := rand.New(rand.NewPCG(seed, 4))
	c := &crash{
		kind: pick(r, kinds...), draws: drawTensors(r), axes: pick(r, nil, []mesh.Axis{{Name: "fsdp", Size: 2}}, []mesh.Axis{{Name: "pp", Size: 2}, {Name: "fsdp", Size: 2}}, []mesh.Axis{{Name: "fsdp", Size: 3}}),
		numBefore: pick(r, 0, 1, 2, 3), keep: pick(r, 0, 1, 2), async: chance(r, 0.4), seed: seed,
		machine: storagetest.NewMachine(t, seed), path: filepath.Join(t.TempDir(), "run"),
	}
	for i := range c.draws { // half of the tensors do not change
		c.draws[i].frozen = c.draws[i].section == checkpoint.Model && i%2 == 0
		if c.draws[i].tied >= 0 {
			c.draws[i].frozen = c.draws[c.draws[i].tied].frozen
		}
	}
	return c
}

func (c *crash) String() string {
	return fmt.Sprintf("%s, %d tensors on %v, %d checkpoints before, keep %d, async %v", c.kind, len(c.draws), c.axes, c.numBefore, c.keep, c.async)
}

// at returns the tensors of a step. Frozen ones are those of each step.
func (c *crash) at(step int) []tensorDraw {
	var out []tensorDraw
	for i, d := range c.draws {
		if !d.frozen && d.tied < 0 {
			r := random(c.seed, fmt.Sprint("step", step, i))
			d.data = make([]byte, len(d.data))
			for j := range d.data {
				d.data[j] = byte(r.Uint32()) & 1
			}
		}
		if d.tied >= 0 {
			d.data = out[d.tied].data
		}
		out = append(out, d)
	}
	return out
}

// saves has all ranks save steps, one after the other, into their storages.
func (c *crash) saves(t *testing.T, steps []int, storageOf func(rank int) storage.Storage) error {
	lies := drawLies(c.seed, c.draws, c.axes, "saved")
	return onMesh(t, c.axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		to := storageOf(rank)
		main := func() error { return c.savesOfRank(ctx, g, m, rank, steps, lies, to) }
		if c.victim == nil || c.victim.rank != rank {
			return main()
		}
		ended := make(chan error, 1)
		c.victim.running.Go(func() { ended <- main() })
		select {
		case err := <-ended:
			return err
		case <-c.victim.dead: // the process is gone, and what it was about to do is not done
			return errKilled
		}
	})
}

var errKilled = errors.New("this rank was killed")

func (c *crash) savesOfRank(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int, steps []int, lies []lie, to storage.Storage) error {
	s, err := checkpoint.NewSaver(ctx, g, to, checkpoint.SaverOptions{Async: c.async, Keep: checkpoint.Retention{Last: c.keep}})
	if err != nil {
		return err
	}
	for _, step := range steps {
		h, err := hold(c.at(step), lies, m, true)
		if err != nil {
			return err
		}
		state := checkpoint.State{Sections: h.sections(), Values: map[string]any{"step": step}, RankValues: map[string]any{"rank": rank}}
		if _, err := s.Save(ctx, step, state); err != nil {
			return errors.Join(err, s.Close(ctx))
		}
		for i, p := range h.parts { // training goes on
			if !p.Away && !h.draws[i].frozen {
				spoil(p.Local)
			}
		}
	}
	return s.Close(ctx)
}

// try disturbs a save, and says what has come of it.
func (c *crash) try(t *testing.T) (what string, err error) {
	r := rand.New(rand.NewPCG(c.seed, 5))
	whole := func(int) storage.Storage { return c.machine.Dir(c.path) }
	numOps := 60 + r.IntN(60) // of the first save, about
	for step := 1; step <= c.numBefore; step++ {
		c.machine.StopAt(-1)
		if err := c.saves(t, []int{step}, whole); err != nil {
			return c.kind, fmt.Errorf("save step %d: %w", step, err)
		}
		numOps = len(c.machine.Ops())
	}
	c.machine.Restart(false) // what is there is durable, by what Save promises
	next := c.numBefore + 1
	n := r.IntN(numOps + 2)
	wrap := whole
	switch c.kind {
	case "all ranks killed", "power failure":
		c.machine.StopAt(n)
	case "disk full":
		c.machine.FailAt(n, syscall.ENOSPC)
	case "disk broken":
		c.machine.FailAt(n, syscall.EIO)
	case "one rank killed":
		c.machine.StopAt(-1)
		v := &victim{rank: r.IntN(max(1, numRanks(c.axes))), after: r.IntN(24), dead: make(chan struct{}), released: make(chan struct{})}
		c.victim = v
		wrap = func(rank int) storage.Storage {
			if rank != v.rank {
				return whole(rank)
			}
			return killed{whole(rank), v}
		}
	}
	saved := c.saves(t, []int{next}, wrap)
	if c.victim != nil {
		close(c.victim.released)
		c.victim.running.Wait()
		c.victim = nil
	}
	lost := c.machine.Restart(c.kind == "power failure")
	found, err := c.newest(t)
	what = fmt.Sprintf("%s: ", c.kind)
	switch {
	case err != nil:
		return what, fmt.Errorf("stopped at %d of %d (%v, lost %+v): %w", n, numOps, saved, lost, err)
	case found != next && (found != c.numBefore || saved == nil):
		return what, fmt.Errorf("stopped at %d of %d: the newest checkpoint is step %d, and the save of step %d returned %v (lost %+v)", n, numOps, found, next, saved, lost)
	case found == next && saved == nil:
		what += "saved"
	case found == next:
		what += "the new one, with an error"
	default:
		what += "the old one"
	}
	// Another attempt finds nothing in the way.
	if found != next {
		if err := c.saves(t, []int{next}, whole); err != nil {
			return what, fmt.Errorf("%v, and then the save again: %w", saved, err)
		}
	}
	if err := c.saves(t, []int{next + 1}, whole); err != nil {
		return what, fmt.Errorf("%v, and then the next save: %w", saved, err)
	}
	if found, err := c.newest(t); err != nil || found != next+1 {
		return what, fmt.Errorf("%v, and then step %d after the save of step %d: %w", saved, found, next+1, err)
	}
	return what, c.tidy(next + 1)
}

// newest loads the newest checkpoint on one rank, and returns its step, 0 for none.
func (c *crash) newest(t *testing.T) (step int, err error) {
	return c.newestIn(t, storage.Dir(c.path))
}

func (c *crash) newestIn(t *testing.T, dir storage.Storage) (step int, err error) {
	ck, err := checkpoint.Open(t.Context(), dir, "")
	switch {
	case err == nil:
		err = ck.Verify(t.Context(), nil)
	case c.numBefore == 0 && errors.Is(err, checkpoint.ErrNone):
		err = nil
	}
	if err != nil {
		return 0, err
	}
	h, err := hold(c.draws, make([]lie, len(c.draws)), nil, false)
	if err != nil {
		return 0, err
	}
	at := 0
	step, err = checkpoint.Load(t.Context(), nil, dir, checkpoint.State{Sections: h.sections(), Values: map[string]any{"step": &at}})
	if err != nil || step == 0 {
		return 0, err
	}
	if at != step {
		return 0, fmt.Errorf("step %d has the value of step %d", step, at)
	}
	for i, d := range c.at(step) {
		h.want[i] = d.data
	}
	return step, h.compare()
}

// tidy says what is left beside the checkpoints.
func (c *crash) tidy(newest int) error {
	entries, err := os.ReadDir(c.path)
	if err != nil {
		return err
	}
	numCheckpoints := 0
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.Contains(name, ".tmp-"), strings.Contains(name, ".damaged"):
			return fmt.Errorf("%s is left behind", name)
		case strings.HasPrefix(name, "step-"):
			numCheckpoints++
			left, err := filepath.Glob(filepath.Join(c.path, name, "*.tmp-*"))
			if err != nil || len(left) > 0 {
				return fmt.Errorf("%v are left behind: %w", left, err)
			}
		}
	}
	want := newest
	if c.keep > 0 {
		want = min(want, c.keep)
	}
	if numCheckpoints != want {
		return fmt.Errorf("%d checkpoints are kept, want %d", numCheckpoints, want)
	}
	return nil
}

// victim is a rank that is killed before one of the operations on its storage.
type victim struct {
	rank     int
	dead     chan struct{} // closed when it is killed
	released chan struct{} // closed when the trial is over
	running  sync.WaitGroup

	mu    sync.Mutex
	after int // operations
}

// alive does not return on a rank that was killed before the trial is over, and then has an
// error.
func (v *victim) alive() error {
	v.mu.Lock()
	v.after--
	if v.after == -1 {
		close(v.dead)
	}
	dead := v.after < 0
	v.mu.Unlock()
	if !dead {
		return nil
	}
	<-v.released
	return storagetest.ErrOff
}

// killed is the storage of a victim.
type killed struct {
	storage.Storage
	*victim
}

func (k killed) Create(ctx context.Context, name string) (storage.File, error) {
	if err := k.alive(); err != nil {
		return nil, err
	}
	f, err := k.Storage.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	return killedFile{f, k.victim}, k.alive()
}

func (k killed) Link(ctx context.Context, from, to string) error {
	if err := k.alive(); err != nil {
		return err
	}
	return errors.Join(k.Storage.Link(ctx, from, to), k.alive())
}

func (k killed) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	if err := k.alive(); err != nil {
		return err
	}
	return errors.Join(k.Storage.Commit(ctx, stage, name, manifest), k.alive())
}

func (k killed) Replace(ctx context.Context, stage, name string, manifest []byte) error {
	if err := k.alive(); err != nil {
		return err
	}
	return errors.Join(k.Storage.Replace(ctx, stage, name, manifest), k.alive())
}

func (k killed) Remove(ctx context.Context, name string) error {
	if err := k.alive(); err != nil {
		return err
	}
	return errors.Join(k.Storage.Remove(ctx, name), k.alive())
}

type killedFile struct {
	storage.File
	*victim
}

func (f killedFile) Write(b []byte) (int, error) {
	if err := f.alive(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f killedFile) Close() error {
	if err := f.alive(); err != nil {
		return err
	}
	return errors.Join(f.File.Close(), f.alive())
}

// TestTwoWriters: of two jobs that save into one place at the same time one is told so, or
// both save, one after the other. Without locks, as on some network file systems, of two that
// save the same step one wins.
func TestTwoWriters(t *testing.T) {
	seed := seeded.Of(t)
	count := make(map[string]int)
	trials(t, 12, func(i int) error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		path, locks := filepath.Join(t.TempDir(), "run"), chance(r, 0.5)
		sameStep := chance(r, 0.5) || !locks
		var jobs [2]*crash
		var errs [2]error
		var wg sync.WaitGroup
		for k := range jobs {
			c := drawCrash(t, seed<<32+uint64(i))
			c.path, c.async, c.keep, c.axes = path, chance(r, 0.5), 0, pick(r, nil, []mesh.Axis{{Name: "fsdp", Size: 2}})
			c.numBefore = k // the number of the job, for its values
			jobs[k] = c
			steps := []int{1, 2, 3}
			if !sameStep && k == 1 {
				steps = []int{11, 12, 13}
			}
			wg.Go(func() {
				errs[k] = c.saves(t, steps, func(int) storage.Storage {
					if locks {
						return storage.Dir(path)
					}
					return unlocked{storage.Dir(path)}
				})
			})
		}
		wg.Wait()
		numWon := 0
		for _, err := range errs {
			var busy *storage.BusyError
			var other *checkpoint.RankError // of rank 0, which says so
			switch {
			case err == nil:
				numWon++
			case !errors.As(err, &busy) && !errors.Is(err, fs.ErrExist) && !errors.As(err, &other):
				return fmt.Errorf("locks %v, the same steps %v: %w", locks, sameStep, err)
			}
		}
		count[fmt.Sprintf("locks %v, the same steps %v: %d succeeded", locks, sameStep, numWon)]++
		if sameStep && numWon == 2 {
			return errors.New("both have saved the same steps")
		}
		step, err := jobs[0].newest(t)
		if err == nil && step == 0 && numWon > 0 {
			err = errors.New("there is no checkpoint")
		}
		return err
	})
	for _, what := range sortedKeys(count) {
		t.Logf("%5d %s", count[what], what)
	}
}

// unlocked is a storage that has no locks.
type unlocked struct{ *storage.Directory }

func (unlocked) Lock(context.Context) (release func(), held bool, err error) {
	return func() {}, false, nil
}
