// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/schedule"
)

// meshDraw is a model, and a mesh that its training is split over.
type meshDraw struct {
	Seed         uint64 // of the model's first values and the batches
	Net          netDraw
	Sizes        lawSizes
	Microbatches int
	Schedule     string  `json:",omitempty"` // of the pipeline
	Stages       int     `json:",omitempty"` // of the pipeline, on all ranks together
	Method       string  `json:",omitempty"` // of context parallelism: ring or heads
	Sequence     bool    `json:",omitempty"` // tensor parallelism cuts the sequence between its modules
	Embedding    string  `json:",omitempty"` // how it cuts the table of the tokens: vocabulary, width, or not
	Pieces       int     `json:",omitempty"` // in which it computes the tokens, if it cuts the sequence
	WholeLogits  bool    `json:",omitempty"` // it gathers the logits
	WholeHead    bool    `json:",omitempty"` // it does not cut the head, if that is not tied
	Time         int     // tokens of a sequence
	Mean         bool    `json:",omitempty"` // a microbatch's loss is the mean of its tokens' losses
	BFloat16     bool    `json:",omitempty"` // computes in it
	MaxNorm      float64 `json:",omitempty"` // of the clipped gradients; 0 for no clipping
	Optimizer    string
	Steps        int  `json:",omitempty"` // 0 for 3
	Recompute    bool `json:",omitempty"`
	Passes       bool `json:",omitempty"` // runs passes and not Step
	Evaluate     bool `json:",omitempty"` // runs the model without gradients before each step
	File         bool `json:",omitempty"` // reloads from a checkpoint on disk
	Reloaded     lawSizes

	rounded *int // counts draws that hold only by one rank's rounding; nil for no count
	disturb bool // ranks begin with values of their own
}

// meshAxes are the axes that draws have. Each is one that Parallelize splits a model
// over.
var meshAxes = []string{"pp", "replicate", "fsdp", "ep", "cp", "tp"}

// axisSize returns one axis of a mesh, which is 1 if it is left out.
func axisSize(z *lawSizes, axis string) *int {
	at := map[string]*int{"pp": &z.PP, "replicate": &z.Replicate, "fsdp": &z.FSDP, "ep": &z.EP, "cp": &z.CP, "tp": &z.TP}[axis]
	if at == nil {
		panic(fmt.Sprintf("no axis %s", axis))
	}
	return at
}

// allSizes returns the meshes of n ranks over some axes.
func allSizes(n int, axes []string) []lawSizes {
	if len(axes) == 0 {
		if n == 1 {
			return []lawSizes{{PP: 1, Replicate: 1, FSDP: 1, EP: 1, CP: 1, TP: 1}}
		}
		return nil
	}
	var out []lawSizes
	for k := 1; k <= n; k++ {
		if n%k == 0 {
			for _, z := range allSizes(n/k, axes[1:]) {
				*axisSize(&z, axes[0]) = k
				out = append(out, z)
			}
		}
	}
	return out
}

// numRanks is how many ranks a mesh has.
func numRanks(z lawSizes) int { return z.PP * z.Replicate * z.FSDP * z.EP * z.CP * z.TP }

// numSamples is how many ranks have samples of their own.
func numSamples(z lawSizes) int { return z.Replicate * z.FSDP * z.EP }

// drawMesh draws a model and one of the meshes of up to 8 ranks over some axes.
func drawMesh(seed uint64, axes []string) meshDraw {
	r := rand.New(rand.NewPCG(seed, 19))
	d := meshDraw{
		Seed: seed, Microbatches: pick(r, 1, 3), MaxNorm: pick(r, 0, 0.1), Optimizer: pick(r, "sgd", "momentum", "adamw"),
		Recompute: chance(r, 0.3), Mean: chance(r, 0.2), BFloat16: chance(r, 0.1), Evaluate: chance(r, 0.2), File: chance(r, 0.2),
	}
	d.Sizes = pick(r, allSizes(pick(r, 1, 2, 3, 4, 4, 6, 8, 8, 8), axes)...)
	d.Passes = d.Sizes.PP*d.Sizes.CP*d.Sizes.TP == 1 && chance(r, 0.2)
	d.Sequence, d.Embedding, d.WholeLogits = chance(r, 0.5), pick(r, "vocabulary", "vocabulary", "width", ""), chance(r, 0.2)
	d.WholeHead = chance(r, 0.2)
	d.Method = pick(r, "ring", "heads")
	if d.Sizes.PP > 1 {
		d.drawPipeline(r)
		if d.Embedding == "width" {
			d.Embedding = "vocabulary" // the dry run does not know how wide the whole is
		}
	}
	d.Time = 2 * d.Sizes.CP * (1 + r.IntN(3))
	if d.Sizes.CP == 1 {
		d.Time = 2 + r.IntN(6)
	}
	d.Net = drawNet(r, d.Sizes, max(1, d.Stages))
	if n := d.Sizes.TP; n > 1 {
		d.Net.Vocabulary, d.Net.Width = max(d.Net.Vocabulary, 50), max(d.Net.Width, 8)
		if d.Net.Width < n*n && d.Embedding == "width" {
			d.Embedding = "vocabulary"
		}
		for i := 0; d.Sequence && !d.legal(d.Sizes) && i < 10; i++ {
			d.Time += 2 * d.Sizes.CP
		}
	}
	legal := slices.DeleteFunc(allSizes(pick(r, 1, 2, 4, 6, 8), axes), func(z lawSizes) bool { return !d.legal(z) })
	d.Reloaded = allSizes(1, axes)[0]
	if len(legal) > 0 {
		d.Reloaded = pick(r, legal...)
	}
	return d
}

// drawPipeline draws a schedule, and numbers of stages and microbatches that it takes.
func (d *meshDraw) drawPipeline(r *rand.Rand) {
	pp := d.Sizes.PP
	for {
		d.Schedule, d.Stages, d.Microbatches = pick(r, schedules...), pp*pick(r, 1, 2, 2, 3), 1+r.IntN(2*pp+2)
		if _, err := schedule.New(d.Schedule, pp, d.Stages, d.Microbatches); err == nil && d.Stages <= max(8, pp) {
			return
		}
	}
}

// schedules are those that draws have.
var schedules = []string{"gpipe", "1f1b", "interleaved", "interleaved-zb", "zbv"}

// fits says whether the pipeline of a mesh takes so many microbatches.
func (d meshDraw) fits(z lawSizes) bool {
	if z.PP == 1 {
		return true
	}
	if d.Stages%z.PP != 0 || d.Stages > len(d.Net.Blocks) {
		return false
	}
	_, err := schedule.New(d.Schedule, z.PP, d.Stages, d.Microbatches*numSamples(d.Sizes)/numSamples(z))
	return err == nil
}

// numSteps is how long a draw trains.
func (d meshDraw) numSteps() int {
	if d.Steps == 0 {
		return numSteps
	}
	return d.Steps
}

// legal says whether a mesh can split the model, without padding.
func (d meshDraw) legal(z lawSizes) bool {
	if d.Time%(2*z.CP) != 0 && z.CP > 1 {
		return false
	}
	if numSamples(d.Sizes)%numSamples(z) != 0 { // a rank takes the samples of several
		return false
	}
	if z.PP > 1 && d.Sizes.PP == 1 || !d.fits(z) { // batches of unlike shapes, and no schedule
		return false
	}
	if z.CP > 1 && slices.ContainsFunc(d.Net.Blocks, func(b netBlockDraw) bool { return b.Options.Capacity > 0 }) {
		return false // a capacity counts whole sequences
	}
	if t := d.Time / z.CP; d.Sequence && z.TP > 1 && (t+z.TP-1)/z.TP*(z.TP-1)+2 > t {
		return false // the types want two tokens a rank: one token may be a dim that is not cut
	}
	if n := d.Net.Vocabulary; (n+z.TP-1)/z.TP*(z.TP-1) >= n || d.Net.Width < z.TP*z.TP && d.Embedding == "width" {
		return false // a rank would have no row
	}
	if z.EP > 1 && !slices.ContainsFunc(d.Net.Blocks, func(b netBlockDraw) bool { return b.Experts > 0 }) {
		return false
	}
	for _, b := range d.Net.Blocks {
		if b.KeyHeads%(z.TP*z.CP) != 0 || b.Hidden%z.TP != 0 || b.Experts%z.EP != 0 {
			return false
		}
	}
	return true
}

// units says whether a microbatch of one rank is a batch that cannot be part of another one.
func (d meshDraw) units() bool {
	return d.Net.Dropout > 0 || d.Mean || slices.ContainsFunc(d.Net.Blocks, netBlockDraw.hasUnits)
}

// String is what the flag -draw takes.
func (d meshDraw) String() string {
	text, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// simpler returns draws that have one thing less each.
func (d meshDraw) simpler() []meshDraw {
	var out []meshDraw
	add := func(change func(d *meshDraw)) {
		e := d
		e.Net.Blocks, e.Net.Frozen = slices.Clone(d.Net.Blocks), slices.Clone(d.Net.Frozen)
		change(&e)
		if !e.legal(e.Reloaded) {
			e.Reloaded = allSizes(1, nil)[0]
		}
		if e.Sizes.PP == 1 {
			e.Schedule, e.Stages = "", 0
		}
		if e.String() != d.String() && len(e.Net.Blocks) > 0 && e.fits(e.Sizes) && e.legal(e.Sizes) {
			out = append(out, e)
		}
	}
	for _, axis := range allAxes {
		add(func(d *meshDraw) { *axisSize(&d.Sizes, axis) = 1 })
		add(func(d *meshDraw) {
			if s := axisSize(&d.Sizes, axis); *s == 4 || *s == 8 {
				*s = 2
			}
		})
	}
	add(func(d *meshDraw) { d.Net.Blocks = d.Net.Blocks[:max(1, d.Stages)] })
	add(func(d *meshDraw) { d.Stages = d.Sizes.PP })
	add(func(d *meshDraw) { d.Schedule, d.Stages = "gpipe", d.Sizes.PP })
	add(func(d *meshDraw) { d.Schedule = "1f1b" })
	add(func(d *meshDraw) { d.Sequence = false })
	add(func(d *meshDraw) { d.Embedding = "" })
	add(func(d *meshDraw) { d.WholeHead = false })
	add(func(d *meshDraw) { d.WholeLogits = false })
	add(func(d *meshDraw) { d.Method = "ring" })
	add(func(d *meshDraw) { d.Time = 2 * d.Sizes.CP })
	add(func(d *meshDraw) { d.Microbatches = d.Sizes.PP })
	add(func(d *meshDraw) { d.Net.Blocks = d.Net.Blocks[1:] })
	add(func(d *meshDraw) { d.Microbatches = 1 })
	add(func(d *meshDraw) { d.Evaluate = false })
	add(func(d *meshDraw) { d.File = false })
	add(func(d *meshDraw) { d.Passes = false })
	add(func(d *meshDraw) { d.Reloaded = allSizes(1, nil)[0] })
	add(func(d *meshDraw) { d.MaxNorm = 0 })
	add(func(d *meshDraw) { d.Recompute = false })
	add(func(d *meshDraw) { d.BFloat16 = false })
	add(func(d *meshDraw) { d.Mean = false })
	add(func(d *meshDraw) { d.Optimizer = "sgd" })
	add(func(d *meshDraw) { d.Net.Frozen = nil })
	add(func(d *meshDraw) { d.Net.Tied = false })
	add(func(d *meshDraw) { d.Net.RMS = false })
	add(func(d *meshDraw) { d.Net.Again = false })
	add(func(d *meshDraw) { d.Net.Documents = false })
	add(func(d *meshDraw) { d.Net.Dropout = 0 })
	add(func(d *meshDraw) { d.Net.Outside = false })
	add(func(d *meshDraw) { d.Net.Positions, d.Net.Outside = "", false })
	add(func(d *meshDraw) { d.Net.Vocabulary = 16 })
	add(func(d *meshDraw) { d.Net.Vocabulary = 50 })
	add(func(d *meshDraw) { d.Net.Width = 8 })
	for i := range d.Net.Frozen {
		add(func(d *meshDraw) { d.Net.Frozen = slices.Delete(d.Net.Frozen, i, i+1) })
	}
	for i := range d.Net.Blocks {
		add(func(d *meshDraw) {
			d.Net.Blocks[i] = netBlockDraw{Hidden: d.Net.Blocks[i].Hidden, Gated: d.Net.Blocks[i].Gated, NoBias: d.Net.Blocks[i].NoBias}
		})
		add(func(d *meshDraw) { d.Net.Blocks[i].Gated = false })
		add(func(d *meshDraw) { d.Net.Blocks[i].NoBias = false })
		add(func(d *meshDraw) { d.Net.Blocks[i].Packed = false })
		add(func(d *meshDraw) { d.Net.Blocks[i].Window = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Dropped = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Heads = d.Net.Blocks[i].KeyHeads })
		add(func(d *meshDraw) {
			d.Net.Blocks[i].Experts, d.Net.Blocks[i].Active, d.Net.Blocks[i].Shared, d.Net.Blocks[i].SharedGate = 0, 0, false, false
			d.Net.Blocks[i].ExpertBias, d.Net.Blocks[i].Options = false, nn.MoEOptions{}
		})
		add(func(d *meshDraw) { d.Net.Blocks[i].Shared, d.Net.Blocks[i].SharedGate = false, false })
		add(func(d *meshDraw) { d.Net.Blocks[i].ExpertBias = false })
		add(func(d *meshDraw) { d.Net.Blocks[i].Options.Balance = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Options.Z = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Options.BiasStep = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Options.Capacity = 0 })
		add(func(d *meshDraw) { d.Net.Blocks[i].Options.Scale = 0 })
	}
	return out
}

// lawSizes are how many ranks each axis of a mesh has.
type lawSizes struct{ PP, Replicate, FSDP, EP, CP, TP int }

// newMesh makes the mesh, without axes of one rank.
func (z lawSizes) newMesh(ctx context.Context, g *dist.Group) (*mesh.Mesh, error) {
	var axes []mesh.Axis
	for _, name := range allAxes {
		if n := *axisSize(&z, name); n > 1 {
			axes = append(axes, mesh.Axis{Name: name, Size: n})
		}
	}
	if len(axes) == 0 {
		axes = []mesh.Axis{{Name: "replicate", Size: 1}}
	}
	return mesh.New(ctx, g, axes...)
}
