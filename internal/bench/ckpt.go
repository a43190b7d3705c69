// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

// CkptOptions choose what Ckpt measures.
type CkptOptions struct {
	Bytes int      // of the state of all ranks
	Dir   string   // in which checkpoints are written; they are removed afterwards
	Cases []string // of [CkptCases]
	Reps  int      // of each case, after one that is not measured
}

// CkptCases are the cases that Ckpt knows.
func CkptCases() []string {
	return []string{"memcpy", "disk", "save", "load", "reshard", "async_block", "async_step"}
}

// tensorBytes is the size of the tensors of the state: those of a model with layers of
// width 2048.
const tensorBytes = 16 << 20

const maxCkptReps = 1000

// Validate reports the first option that makes no sense.
func (o CkptOptions) Validate() error {
	for _, name := range o.Cases {
		if err := oneOf("case", name, CkptCases()); err != nil {
			return err
		}
	}
	if o.Bytes < 1<<10 || o.Bytes > math.MaxInt/2 {
		return fmt.Errorf("a state of %d bytes: want 1 KiB or more", o.Bytes)
	}
	if o.Reps < 1 || o.Reps > maxCkptReps {
		return fmt.Errorf("%d repetitions: want 1 to %d", o.Reps, maxCkptReps)
	}
	return nil
}

// ckptBench is what the cases work on.
type ckptBench struct {
	o     CkptOptions
	group *dist.Group
	dir   string // of this run, within o.Dir; the same on all ranks
	state checkpoint.State
}

// Ckpt measures how fast the state of ranks is saved and loaded. The state has tensors of
// 16 MiB, each cut over the ranks by its first dim, as FSDP cuts them. Every rank of group
// calls it; emit is called on rank 0 with the result of each case. The times are those of
// rank 0 from one barrier of all ranks to the next.
func Ckpt(ctx context.Context, group *dist.Group, o CkptOptions, emit func(Result) error) error {
	fail := func(err error) error { return fmt.Errorf("bench ckpt: %w", err) }
	if err := o.Validate(); err != nil {
		return fail(err)
	}
	b := &ckptBench{o: o, group: group, dir: filepath.Join(o.Dir, "cohort-bench-ckpt")}
	if err := b.begin(ctx); err != nil {
		return fail(err)
	}
	defer b.removeAll()
	for _, name := range o.Cases {
		if name == "reshard" && group.Size() < 2 {
			continue // one rank has nobody to give a part to
		}
		r, err := b.measure(ctx, name)
		if err != nil {
			return fail(fmt.Errorf("%s: %w", name, err))
		}
		if group.Rank() == 0 {
			if err := emit(r); err != nil {
				return err
			}
		}
	}
	return group.Barrier(ctx)
}

// begin makes the state.
func (b *ckptBench) begin(ctx context.Context) error {
	if b.group.Rank() == 0 {
		if err := os.RemoveAll(b.dir); err != nil {
			return err
		}
		if err := os.MkdirAll(b.dir, 0o777); err != nil {
			return err
		}
	}
	var err error
	if b.state, err = b.newState(ctx, b.group); err != nil {
		return err
	}
	rng := tensor.NewGenerator(int64(b.group.Rank()))
	for _, parts := range b.state.Sections {
		for _, p := range parts {
			rng.Uniform(p.Local, -1, 1)
		}
	}
	return b.group.Barrier(ctx)
}

// newState returns a state that is cut over the ranks of a group: a third of it the model, the
// rest the optimizer's.
func (b *ckptBench) newState(ctx context.Context, group *dist.Group) (checkpoint.State, error) {
	m, err := mesh.New(ctx, group, mesh.Axis{Name: "fsdp", Size: group.Size()})
	if err != nil {
		return checkpoint.State{}, err
	}
	s := checkpoint.State{Sections: map[string][]checkpoint.Part{}}
	const width = 2048
	rows := func(bytes int) int { return max(1, bytes/(4*width)) }
	for left, i := b.o.Bytes, 0; left > 0; i++ {
		n := min(left, tensorBytes)
		left -= n
		layout := mesh.Layout{Mesh: m, Shape: []int{rows(n), width}, Placements: []mesh.Placement{mesh.Shard(0)}}
		shape, err := layout.LocalShape()
		if err != nil {
			return checkpoint.State{}, err
		}
		local := tensor.New(tensor.CPU(), tensor.Float32, shape...)
		section := []string{checkpoint.Model, checkpoint.Optimizer, checkpoint.Optimizer}[i%3]
		p := checkpoint.Part{Name: fmt.Sprintf("layers.%d.weight", i), Tensor: mesh.Tensor{Local: local, Layout: layout}}
		s.Sections[section] = append(s.Sections[section], p)
	}
	return s, nil
}

// removeAll removes what the benchmark wrote.
func (b *ckptBench) removeAll() {
	if b.group.Rank() == 0 {
		os.RemoveAll(b.dir)
	}
}

func (b *ckptBench) storage() storage.Storage { return storage.Dir(filepath.Join(b.dir, "run")) }

// measure runs a case.
func (b *ckptBench) measure(ctx context.Context, name string) (Result, error) {
	r := Result{Bench: "ckpt", Case: name, Ranks: b.group.Size(), Threads: tensor.NumThreads(), Bytes: b.o.Bytes, DType: "float32"}
	var ts times
	var err error
	switch name {
	case "memcpy":
		ts, err = b.memcpy(ctx)
	case "disk":
		ts, err = b.repeat(ctx, func(int) error { return b.writeRaw() }, b.removeRaw)
	case "save":
		ts, err = b.repeat(ctx, func(i int) error { return checkpoint.Save(ctx, b.group, b.storage(), i+1, b.state) }, b.removeRun)
	case "load":
		ts, err = b.load(ctx)
	case "reshard":
		ts, err = b.reshard(ctx)
	case "async_block":
		ts, err = b.asyncBlock(ctx)
	case "async_step":
		return b.asyncStep(ctx, r)
	}
	r.MedianMicros, r.MinMicros = micros(ts.median()), micros(ts.quantile(0))
	r.GBPerSec = perSecond(float64(b.o.Bytes), ts.median())
	return r, err
}

// repeat measures do on all ranks together, with clean after each time.
func (b *ckptBench) repeat(ctx context.Context, do func(i int) error, clean func() error) (times, error) {
	var ts times
	for i := range b.o.Reps + 1 {
		if err := b.group.Barrier(ctx); err != nil {
			return nil, err
		}
		start := time.Now()
		err := do(i)
		if err == nil {
			err = b.group.Barrier(ctx)
		}
		took := time.Since(start)
		if err != nil {
			return nil, err
		}
		if clean != nil {
			err = clean()
		}
		if err := errors.Join(err, b.group.Barrier(ctx)); err != nil {
			return nil, err
		}
		if i > 0 { // the first one pays for what is made once
			ts = append(ts, took)
		}
	}
	return ts, nil
}

// parts returns all parts of the state.
func (b *ckptBench) parts() []checkpoint.Part {
	return slices.Concat(b.state.Sections[checkpoint.Model], b.state.Sections[checkpoint.Optimizer])
}

// memcpy copies the state within memory.
func (b *ckptBench) memcpy(ctx context.Context) (times, error) {
	copies := make([][]byte, 0)
	for _, p := range b.parts() {
		copies = append(copies, make([]byte, bytesOf(p.Local)))
	}
	return b.repeat(ctx, func(int) error {
		for i, p := range b.parts() {
			copy(copies[i], p.Local.Buffer().Data)
		}
		return nil
	}, nil)
}

func (b *ckptBench) rawFile() string {
	return filepath.Join(b.dir, fmt.Sprintf("raw-%05d", b.group.Rank()))
}

// writeRaw writes the bytes of this rank to a file and makes it durable: what the disk allows.
func (b *ckptBench) writeRaw() (err error) {
	f, err := os.Create(b.rawFile())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, p := range b.parts() {
		if _, err := f.Write(p.Local.Buffer().Data); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (b *ckptBench) removeRaw() error { return os.Remove(b.rawFile()) }

// removeRun removes the checkpoints, on rank 0.
func (b *ckptBench) removeRun() error {
	if b.group.Rank() != 0 {
		return nil
	}
	return os.RemoveAll(filepath.Join(b.dir, "run"))
}

// saved saves the state once, for the cases that load it.
func (b *ckptBench) saved(ctx context.Context) error {
	if err := b.group.Barrier(ctx); err != nil {
		return err
	}
	return checkpoint.Save(ctx, b.group, b.storage(), 1, b.state)
}

// load loads what the same ranks have saved. The pages of the files are in the system's cache.
func (b *ckptBench) load(ctx context.Context) (times, error) {
	if err := b.saved(ctx); err != nil {
		return nil, err
	}
	ts, err := b.repeat(ctx, func(int) error {
		_, err := checkpoint.Load(ctx, b.group, b.storage(), b.state)
		return err
	}, nil)
	return ts, errors.Join(err, b.removeRun())
}

// reshard loads what all ranks have saved, on one rank less.
func (b *ckptBench) reshard(ctx context.Context) (times, error) {
	if err := b.saved(ctx); err != nil {
		return nil, err
	}
	fewer := make([]int, b.group.Size()-1)
	for i := range fewer {
		fewer[i] = i
	}
	isIn := b.group.Rank() < len(fewer)
	do := func(int) error { return nil }
	if isIn {
		group, err := b.group.NewGroup(ctx, fewer)
		if err != nil {
			return nil, err
		}
		defer group.Close()
		state, err := b.newState(ctx, group)
		if err != nil {
			return nil, err
		}
		do = func(int) error {
			_, err := checkpoint.Load(ctx, group, b.storage(), state)
			return err
		}
	}
	ts, err := b.repeat(ctx, do, nil)
	return ts, errors.Join(err, b.removeRun())
}
