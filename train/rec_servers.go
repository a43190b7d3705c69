// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// servedTables are the tables of a recommender that lie on parameter servers. Checkpoints have
// their rows as if they lay in the ranks, each of which reads and writes a range of the rows.
// So a run may go on with other servers, or with none. It implements [Elsewhere].
type servedTables struct {
	group  *dist.Group
	client *ps.Client
	model  *ps.Attached

	layers   *servedLayers // nil: they are the ranks'
	tables   []servedTable
	mesh     *mesh.Mesh
	fetched  int64 // the step whose rows are in the parts; -1: none
	inputsMu sync.Mutex
	inputs   map[*float32][]*tensor.Tensor // of batches whose rows were asked for, by their labels
}

// servedTable is a table, with the rows of this rank's range as checkpoints have them.
type servedTable struct {
	rows.Schema
	layout                mesh.Layout
	keys                  []int64
	values, states, count *tensor.Tensor
}

// serve gives the tables of the run's recommender to servers. closing ends that.
func (r *recRun) serve(ctx context.Context) (t *servedTables, closing func(failed bool) error, err error) {
	phaseOf(ctx).enter("reaching the parameter servers")
	if err := r.unclaimed(ctx); err != nil {
		return nil, nil, err
	}
	model := r.recommender.Model
	schemas := r.cfg.schemas(model)
	numRows := map[string]int{}
	for _, p := range ps.EmbeddingWeights(model) {
		numRows[p.Name()] = p.Data().Dim(0)
	}
	all := schemas
	if r.cfg.Layers {
		all = slices.Concat(schemas, r.cfg.layerSchemas(model))
	}
	t = &servedTables{group: r.axes.World, fetched: -1, inputs: map[*float32][]*tensor.Tensor{}}
	t.client, closing, err = r.cfg.openServers(ctx, t.group, all, r.report.Notice)
	if err != nil {
		return nil, nil, err
	}
	if t.model, err = ps.Attach(model, t.client); err == nil && r.cfg.Layers {
		t.layers, err = newServedLayers(model, t.client, t.group)
	}
	if err == nil {
		t.mesh, err = mesh.New(ctx, t.group, mesh.Axis{Name: "rows", Size: t.group.Size()})
	}
	if err == nil {
		err = t.cut(schemas, numRows)
	}
	if err != nil {
		_ = closing(true)
		return nil, nil, err
	}
	end := closing
	return t, func(failed bool) error {
		_ = t.mesh.Close()
		return end(failed)
	}, nil
}

// unclaimed returns an error if another run is at work in the run's directory, whose servers
// may have their rows there.
func (r *recRun) unclaimed(ctx context.Context) error {
	var err error
	if r.cfg.PS > 0 && r.axes.World.Rank() == 0 {
		var release func()
		if release, err = claim(ctx, r.cfg.Out); err == nil {
			release()
		} else {
			err = settled(fmt.Errorf("servers cannot keep rows in %s: %w", r.cfg.Out, err))
		}
	}
	return together(ctx, r.axes.World, err)
}

// cut says which rows of each table are this rank's in a checkpoint.
func (t *servedTables) cut(schemas []rows.Schema, numRows map[string]int) error {
	for _, s := range schemas {
		n := numRows[s.Name]
		own := servedTable{Schema: s, layout: mesh.Layout{Mesh: t.mesh, Shape: []int{n, s.Width}, Placements: []mesh.Placement{mesh.Shard(0)}}}
		boxes, err := own.layout.Boxes()
		if err != nil {
			return err
		}
		for _, b := range boxes {
			for k := range b.Shape[0] {
				own.keys = append(own.keys, int64(b.Start[0]+k))
			}
		}
		own.values, own.states = tensor.Zeros(len(own.keys), s.Width), tensor.Zeros(len(own.keys), s.StateLen())
		own.count = tensor.Zeros()
		t.tables = append(t.tables, own)
	}
	return nil
}

// NumParams implements [Elsewhere].
func (t *servedTables) NumParams() (n int) {
	for _, s := range t.tables {
		n += s.layout.Shape[0] * s.Width
	}
	return n
}

// Parts implements [Elsewhere].
func (t *servedTables) Parts() (weights, optimizer []checkpoint.Part) {
	for _, s := range t.tables {
		weights = append(weights, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: s.values, Layout: s.layout}})
		optimizer = append(optimizer, checkpoint.Part{Name: "sum." + s.Name, Tensor: mesh.Tensor{Local: s.states, Layout: s.layout}},
			checkpoint.Part{Name: "step." + s.Name, Tensor: mesh.Tensor{Local: s.count}})
	}
	if t.layers != nil {
		optimizer = append(optimizer, t.layers.parts()...)
	}
	return weights, optimizer
}

// Moved implements [Elsewhere]. Where the update was left out, no rank pushes.
func (t *servedTables) Moved(ctx context.Context, done bool) error {
	if t.layers != nil {
		if err := t.layers.Add(1); err != nil {
			return err
		}
	}
	if !done {
		t.client.Discard()
		return nil
	}
	return t.client.Step(ctx)
}

// settle waits until the servers have what all ranks have pushed.
func (t *servedTables) settle(ctx context.Context) error {
	if err := t.client.Flush(ctx); err != nil {
		return err
	}
	return t.group.Barrier(ctx)
}

// Fetch implements [Elsewhere].
func (t *servedTables) Fetch(ctx context.Context) error {
	step := t.client.StepNumber()
	if step == t.fetched {
		return nil
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	for _, s := range t.tables {
		if err := t.client.Lookup(ctx, s.Name, s.keys, s.values, s.states); err != nil {
			return err
		}
		s.count.Fill(float64(step))
	}
	if t.layers != nil {
		if err := t.layers.fetch(ctx, step); err != nil {
			return err
		}
	}
	t.fetched = step
	// Nobody pushes again before all have read.
	return t.group.Barrier(ctx)
}

// Restore implements [Elsewhere]. Rows that are as they began are left out: the servers know
// what they begin with.
func (t *servedTables) Restore(ctx context.Context) error {
	step := int64(t.tables[0].count.Item())
	err := t.group.Barrier(ctx)
	if err == nil && t.group.Rank() == 0 {
		err = t.client.Begin(ctx, step)
	}
	if err := together(ctx, t.group, err); err != nil {
		return err
	}
	for _, s := range t.tables {
		if err == nil {
			keys, values, states := s.touched()
			err = t.client.Insert(ctx, s.Name, keys, values, states)
		}
	}
	if err == nil && t.layers != nil && t.group.Rank() == 0 {
		err = t.layers.Insert(ctx, t.layers.states)
	}
	if err == nil {
		err = t.client.Rejoin(ctx)
	}
	t.fetched = step
	return together(ctx, t.group, err)
}

// touched returns the rows that are not as they began.
func (s *servedTable) touched() (keys []int64, values, states *tensor.Tensor) {
	v, st := s.values.Float32s(), s.states.Float32s()
	first := make([]float32, s.Width)
	length := s.StateLen()
	var v2, st2 []float32
	for i, k := range s.keys {
		s.First(first, k)
		row, state := v[i*s.Width:(i+1)*s.Width], st[i*length:(i+1)*length]
		same := true
		for j, x := range row {
			same = same && x == first[j]
		}
		for _, x := range state {
			same = same && x == 0
		}
		if !same {
			keys, v2, st2 = append(keys, k), append(v2, row...), append(st2, state...)
		}
	}
	return keys, tensor.FromFloat32(v2, len(keys), s.Width), tensor.FromFloat32(st2, len(keys), length)
}

// Anew implements [Elsewhere]: servers that run already may have the rows of another run.
func (t *servedTables) Anew(ctx context.Context) error {
	var err error
	if step := t.client.StepNumber(); step > 0 {
		err = fmt.Errorf("the parameter servers have the rows of a run that has made %d steps, and this run begins anew: give the --out of that run, or other servers", step)
	}
	if err := together(ctx, t.group, err); err != nil || t.layers == nil {
		return err
	}
	if t.group.Rank() == 0 {
		err = t.layers.Put(ctx)
	}
	return together(ctx, t.group, err)
}

// staleness is the mean age of the rows of all pulls so far, in steps.
func (t *servedTables) staleness(ctx context.Context) (Metric, error) {
	s := t.client.Staleness()
	numbers := tensor.FromInt64([]int64{int64(s.Sum), int64(s.Pulls)}, 2).To(tensor.Float64)
	if t.group.Size() > 1 {
		if err := t.group.AllReduce(ctx, numbers, dist.Sum); err != nil {
			return Metric{}, err
		}
	}
	m := Metric{Name: "staleness"}
	numbers.WithFloat64s(func(n []float64) { m.Value = n[0] / max(1, n[1]) })
	return m, nil
}

// ask asks for the rows of a batch that a later step takes.
func (t *servedTables) ask(ctx context.Context, r *Recommender, step int64, b table.Batch) error {
	if b.Rows == 0 {
		return nil
	}
	in := r.inputs(tensor.On(tensor.CPU()), b)
	t.inputsMu.Lock()
	t.inputs[&b.Labels[0]] = in
	t.inputsMu.Unlock()
	return t.model.Prefetch(ctx, step, in...)
}

// take returns the inputs of a batch whose rows were asked for, nil if they were not.
func (t *servedTables) take(b table.Batch) []*tensor.Tensor {
	if t == nil || b.Rows == 0 {
		return nil
	}
	t.inputsMu.Lock()
	defer t.inputsMu.Unlock()
	in := t.inputs[&b.Labels[0]]
	delete(t.inputs, &b.Labels[0])
	return in
}

// aheadFeed has batches ready whose rows it has asked the servers for.
type aheadFeed struct {
	Feed[table.Batch]
	tables *servedTables
	model  *Recommender
	depth  int // batches that are asked for ahead
	passes int // in a step
	ready  []readyBatch
	state  data.LoaderState // after the last batch that was taken
	number int64            // of the next batch
	last   readyBatch       // that was taken
}

type readyBatch struct {
	batch   table.Batch
	state   data.LoaderState // after it
	keys    []data.Key
	skipped []data.Skip
	err     error
}

func newAheadFeed(inner Feed[table.Batch], t *servedTables, model *Recommender, depth, passes int) *aheadFeed {
	return &aheadFeed{Feed: inner, tables: t, model: model, depth: depth, passes: passes, state: inner.State()}
}

// Next returns a batch, and then asks for those behind it.
func (f *aheadFeed) Next(ctx context.Context) (table.Batch, error) {
	if len(f.ready) == 0 {
		f.read(ctx)
	}
	next := f.ready[0]
	f.ready = f.ready[1:]
	if next.err != nil {
		return table.Batch{}, next.err
	}
	f.state, f.last = next.state, next
	// This batch is one of the step under way.
	step, left := f.tables.client.StepNumber(), f.passes-1-int(f.number%int64(f.passes))
	f.number++
	for len(f.ready) < f.depth*f.passes && (len(f.ready) == 0 || f.ready[len(f.ready)-1].err == nil) {
		i := len(f.ready)
		f.read(ctx)
		if b := f.ready[i]; b.err == nil {
			later := step
			if i >= left {
				later += int64((i-left)/f.passes) + 1
			}
			if err := f.tables.ask(ctx, f.model, later, b.batch); err != nil {
				return table.Batch{}, err
			}
		}
	}
	return next.batch, nil
}

// read reads a batch of the inner feed.
func (f *aheadFeed) read(ctx context.Context) {
	b, err := f.Feed.Next(ctx)
	ready := readyBatch{batch: b, state: f.Feed.State(), err: err}
	if o, ok := f.Feed.(ordered); ok {
		ready.keys, ready.skipped = slices.Clone(o.Keys()), slices.Clone(o.Skipped())
	}
	f.ready = append(f.ready, ready)
}

// Keys are the samples of the last batch, as those of [data.Loader].
func (f *aheadFeed) Keys() []data.Key { return f.last.keys }

// Skipped are the samples of the last batch that were replaced.
func (f *aheadFeed) Skipped() []data.Skip { return f.last.skipped }

// State is the place after the last batch that Next has returned.
func (f *aheadFeed) State() data.LoaderState { return f.state }
