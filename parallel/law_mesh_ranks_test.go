// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// meshOutcome is what training gives one rank.
type meshOutcome struct {
	outcome
	samples int // which of the samples it takes
	lies    map[string][]mesh.Box
}

// onRanks trains on a mesh. from is nil, or the state with which the last step begins.
func (d meshDraw) onRanks(t *testing.T, z lawSizes, from map[string]part, dir string) (outcome, error) {
	ranks := make([]meshOutcome, numRanks(z))
	err := spawn(t, len(ranks), func(ctx context.Context, g *dist.Group) (err error) {
		ranks[g.Rank()], err = d.onRank(ctx, g, z, from, dir)
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	return d.assemble(ranks, numSamples(z))
}

// split makes the strategy of a draw.
func (d meshDraw) split(ctx context.Context, g *dist.Group, z lawSizes, model *lawNet) (*Parallel, *mesh.Mesh, error) {
	m, err := z.newMesh(ctx, g)
	if err != nil {
		return nil, nil, err
	}
	c, err := d.config(z)
	if err != nil {
		return nil, nil, err
	}
	p, err := Parallelize(ctx, model, m, c)
	return p, m, err
}

// config is what Parallelize is told.
func (d meshDraw) config(z lawSizes) (c Config, err error) {
	if z.TP > 1 {
		c.Plan, err = ParsePlan(d.plan())
		c.TP = TPConfig{WholeSequence: !d.Sequence, WholeLogits: d.WholeLogits, Pieces: d.Pieces}
	}
	c.Context.Attention = d.Method
	if z.PP > 1 {
		c.Pipeline = PipelineConfig{
			Schedule: d.Schedule, NumStages: d.Stages,
			Example: []*tensor.Tensor{tensor.New(tensor.Meta, tensor.Int64, 2, d.Time)},
		}
	}
	return c, err
}

// onRank trains the part of one rank.
func (d meshDraw) onRank(ctx context.Context, g *dist.Group, z lawSizes, from map[string]part, dir string) (out meshOutcome, err error) {
	model := d.Net.build(int64(d.Seed))
	if d.disturb {
		for _, p := range nn.Parameters(model) {
			p.Data().CopyFrom(p.Data().AddScalar(float64(g.Rank())))
		}
	}
	s, m, err := d.split(ctx, g, z, model)
	if err != nil {
		return out, err
	}
	t := d.newTrainer(model, s)
	t.samples, t.group = numSamples(z), g
	if d.Recompute {
		t.around = append(t.around, nn.Recompute(func(m any) bool { _, is := m.(*netBlock); return is }))
	}
	if out.lies, err = t.lies(); err != nil {
		return out, err
	}
	for _, axis := range []string{"replicate", "fsdp", "ep"} {
		if i, err := m.Index(axis); err == nil {
			out.samples = out.samples*m.Shape()[i] + m.Coordinate()[i]
		}
	}
	first, last := 0, d.numSteps()
	r := rand.New(rand.NewPCG(d.Seed, 18))
	if from != nil {
		first, last = last, last+1
		if err := t.load(ctx, from, out.lies, dir); err != nil {
			return out, err
		}
	}
	for i := range last {
		batches := d.batches(r)
		if i < first {
			continue
		}
		if err := t.step(ctx, regroup(batches, t.samples), out.samples); err != nil {
			return out, err
		}
	}
	t.out.state = make(map[string]part)
	for _, p := range nn.Parameters(model) {
		if _, here := out.lies[p.Name()]; here {
			t.out.state[p.Name()] = partOf(p.Data())
		}
	}
	for _, b := range nn.Buffers(model) {
		if b.Data.Device() != tensor.Meta {
			t.out.state[b.Name()] = partOf(b.Data)
		}
	}
	out.outcome = t.out
	if d.File && from == nil {
		return out, t.save(ctx, g, dir)
	}
	return out, nil
}

// regroup makes more microbatches of those of fewer ranks. Their number divides that of the ranks there were.
func regroup(batches [][]netBatch, ranks int) [][]netBatch {
	var out [][]netBatch
	for _, all := range batches {
		out = slices.AppendSeq(out, slices.Chunk(all, ranks))
	}
	return out
}

// lies says which parts of the parameters the rank holds. A stage of a pipeline has not all
// parameters.
func (t *meshTrainer) lies() (map[string][]mesh.Box, error) {
	out := make(map[string][]mesh.Box)
	for _, p := range nn.Parameters(t.model) {
		if p.Data().Device() == tensor.Meta {
			continue
		}
		l := t.strategy.Layout(p)
		shape, err := l.LocalShape()
		if err != nil {
			return nil, err
		}
		if !slices.Equal(shape, p.Data().Shape()) {
			return nil, fmt.Errorf("%s has the shape %v, and %v in its layout %v", p.Name(), p.Data().Shape(), shape, l)
		}
		if out[p.Name()], err = l.Boxes(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// step trains on the rank's samples by the strategy.
func (t *meshTrainer) step(ctx context.Context, batches [][]netBatch, samples int) error {
	valid := countTokens(batches)
	if err := t.begin(ctx, batches[0][samples:samples+1], valid); err != nil {
		return err
	}
	var microbatches []Microbatch
	for _, all := range batches {
		b := all[samples]
		microbatches = append(microbatches, Microbatch{
			Carrier: func(ctx context.Context) *nn.Ctx { return t.carrier(ctx, b) },
			Loss: func(c *nn.Ctx) *tensor.Tensor {
				return b.share(c, t.draw, t.strategy, valid).MulScalar(float64(t.samples))
			},
		})
	}
	loss, err := 0.0, error(nil)
	if t.draw.Passes {
		loss, err = t.passes(ctx, microbatches)
	} else {
		var sum *tensor.Tensor
		if sum, err = t.strategy.Step(ctx, microbatches); err == nil {
			loss = sum.Item()
		}
	}
	if err != nil {
		return err
	}
	t.out.losses = append(t.out.losses, loss/float64(t.samples))
	params := nn.Parameters(t.model)
	if t.out.grads == nil {
		t.out.grads = make(map[string]part)
		for _, p := range params {
			if p.Grad() != nil {
				t.out.grads[p.Name()] = partOf(p.Grad())
			}
		}
	}
	norm, scale, err := t.strategy.ClipGradNorm(ctx, params, t.draw.maxNorm())
	if err != nil {
		return err
	}
	t.end(norm, scale)
	return nil
}

// passes runs what Step does, by the methods that a loop of its own calls.
func (t *meshTrainer) passes(ctx context.Context, microbatches []Microbatch) (sum float64, err error) {
	for i, b := range microbatches {
		pass := func() (err error) {
			c := b.Carrier(ctx)
			defer c.Close()
			defer c.Recover(&err)
			l := b.Loss(c)
			sum += l.Item()
			if added := c.AddedLoss(); added != nil {
				l = l.Add(added.MulScalar(1 / float64(len(microbatches))))
			}
			return l.Backward(c)
		}
		if i < len(microbatches)-1 {
			err = t.strategy.NoSync(pass)
		} else {
			err = pass()
		}
		if err != nil {
			return 0, err
		}
	}
	return sum, nn.BalanceExperts(t.model, func(counts *tensor.Tensor) error { return t.group.AllReduce(ctx, counts, dist.Sum) })
}

// parts is what the rank holds of the state, for a checkpoint.
func (t *meshTrainer) parts() []checkpoint.Part {
	layouts, away := make(map[string]mesh.Layout), make(map[string]bool)
	for _, p := range nn.Parameters(t.model) {
		l := t.strategy.Layout(p)
		if m := t.strategy.Mesh(); m.Has(pipelineAxis) { // other ranks may lack it
			all := mesh.Layout{Mesh: m, Shape: l.Shape, Placements: make([]mesh.Placement, len(m.Axes()))}
			for i, a := range m.Axes() {
				if l.Mesh != nil && l.Mesh.Has(a.Name) {
					j, _ := l.Mesh.Index(a.Name)
					all.Placements[i] = l.Placements[j]
				}
			}
			l = all
		}
		layouts[p.Name()], away[p.Name()] = l, t.strategy.IsAway(p)
	}
	var parts []checkpoint.Part
	for _, s := range t.strategy.StateDict() {
		parts = append(parts, checkpoint.Part{Name: s.Name, Tensor: mesh.Tensor{Local: s.Tensor, Layout: layouts[s.Name]}, Away: away[s.Name]})
	}
	return parts
}

func (t *meshTrainer) save(ctx context.Context, group *dist.Group, dir string) error {
	state := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: t.parts()}}
	return checkpoint.Save(ctx, group, storage.Dir(dir), t.draw.numSteps(), state, checkpoint.WithShare(1), checkpoint.WithRetention(checkpoint.KeepLast(1)))
}

// load gives a rank's parts of a model the values of a whole state.
func (t *meshTrainer) load(ctx context.Context, from map[string]part, lies map[string][]mesh.Box, dir string) error {
	if t.draw.File {
		saved, _, err := checkpoint.Latest(ctx, storage.Dir(dir))
		if err != nil {
			return err
		}
		return saved.LoadParts(checkpoint.Model, t.parts())
	}
	for _, p := range nn.Parameters(t.model) {
		boxes, here := lies[p.Name()]
		if !here || p.Data().NumElems() == 0 {
			continue
		}
		whole, shape := from[p.Name()], p.Data().Shape()
		own := make([]float64, numElemsOf(shape))
		for _, b := range boxes {
			eachElement(b, whole.shape, shape, func(at, local int) { own[local] = whole.elements[at] })
		}
		p.Data().CopyFrom(tensor.FromFloat64(own, shape...).To(tensor.Float32))
	}
	for _, b := range nn.Buffers(t.model) {
		if b.Data.Device() != tensor.Meta {
			b.Data.CopyFrom(tensor.FromFloat64(from[b.Name()].elements, b.Data.Shape()...).To(tensor.Float32))
		}
	}
	return nil
}

// eachElement calls fn with the places of a box's elements in the whole and in the local
// tensor.
func eachElement(b mesh.Box, whole, local []int, fn func(at, local int)) {
	offset := make([]int, len(b.Shape))
	for range numElemsOf(b.Shape) {
		at, own := 0, 0
		for d := range offset {
			at, own = at*whole[d]+b.Start[d]+offset[d], own*local[d]+b.LocalStart[d]+offset[d]
		}
		fn(at, own)
		for d := len(offset) - 1; d >= 0; d-- {
			if offset[d]++; offset[d] < b.Shape[d] {
				break
			}
			offset[d] = 0
		}
	}
}

// assemble makes one outcome of those of the ranks. What several ranks have must be the same bits.
func (d meshDraw) assemble(ranks []meshOutcome, samples int) (outcome, error) {
	all := outcome{
		norms: ranks[0].norms, scales: ranks[0].scales, losses: make([]float64, len(ranks[0].losses)),
		evaluations: make([]float64, len(ranks[0].evaluations)), grads: make(map[string]part), state: make(map[string]part),
	}
	first := make(map[int]int) // the rank that takes samples
	for i, r := range ranks {
		if !slices.Equal(r.norms, all.norms) || !slices.Equal(r.scales, all.scales) {
			return all, fmt.Errorf("rank %d has the norms %v, rank 0 %v", i, r.norms, all.norms)
		}
		if j, has := first[r.samples]; has {
			if !slices.Equal(r.losses, ranks[j].losses) || !slices.Equal(r.evaluations, ranks[j].evaluations) {
				return all, fmt.Errorf("ranks %d and %d take the same samples and have the losses %v and %v", j, i, ranks[j].losses, r.losses)
			}
			continue
		}
		first[r.samples] = i
		for step, loss := range r.losses {
			all.losses[step] += loss
		}
		for step, loss := range r.evaluations {
			all.evaluations[step] += loss
		}
	}
	if len(first) != samples {
		return all, fmt.Errorf("%d ranks have samples of their own, want %d", len(first), samples)
	}
	whole := d.Net.build(int64(d.Seed))
	for _, b := range nn.Buffers(whole) {
		for i, r := range ranks {
			own, here := r.state[b.Name()]
			if !here {
				continue
			}
			if first, has := all.state[b.Name()]; has && !slices.Equal(first.elements, own.elements) {
				return all, fmt.Errorf("%s is %v on rank %d and %v on another", b.Name(), own.elements, i, first.elements)
			}
			all.state[b.Name()] = own
		}
	}
	for _, p := range nn.Parameters(whole) {
		state, err := joinBoxes(ranks, p, func(r *meshOutcome) (part, bool) { s, has := r.state[p.Name()]; return s, has })
		if err != nil {
			return all, fmt.Errorf("%s: %w", p.Name(), err)
		}
		all.state[p.Name()] = state
		grad, err := joinBoxes(ranks, p, func(r *meshOutcome) (part, bool) { g, has := r.grads[p.Name()]; return g, has })
		switch {
		case err == nil:
			all.grads[p.Name()] = grad
		case !errors.Is(err, errNone):
			return all, fmt.Errorf("gradient of %s: %w", p.Name(), err)
		}
	}
	return all, nil
}

var errNone = errors.New("no rank has a part of it")

// joinBoxes puts the parts of a parameter together.
func joinBoxes(ranks []meshOutcome, p *nn.Parameter, of func(r *meshOutcome) (part, bool)) (part, error) {
	all := part{p.Data().Shape(), make([]float64, p.Data().NumElems())}
	from := make([]int, len(all.elements)) // 1 + the rank that an element is from
	some, differ := false, error(nil)
	for i := range ranks {
		own, has := of(&ranks[i])
		boxes, here := ranks[i].lies[p.Name()]
		if has && !here {
			return all, fmt.Errorf("rank %d has a value and no part of the parameter", i)
		}
		if !has {
			continue
		}
		some = true
		for _, b := range boxes {
			eachElement(b, all.shape, own.shape, func(at, local int) {
				switch {
				case from[at] == 0:
					all.elements[at], from[at] = own.elements[local], i+1
				case all.elements[at] != own.elements[local] && differ == nil:
					differ = fmt.Errorf("element %d is %v on rank %d and %v on rank %d", at, all.elements[at], from[at]-1, own.elements[local], i)
				}
			})
		}
	}
	if !some {
		return all, errNone
	}
	if at := slices.Index(from, 0); at >= 0 {
		return all, fmt.Errorf("no rank has element %d of %v", at, all.shape)
	}
	return all, differ
}
