// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"runtime"
	"slices"

	"golang.org/x/sys/cpu"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train/proof"
)

// recorder makes the proof of a checkpoint from the step after it. It is idle in all other
// steps.
type recorder struct {
	proof   *proof.Proof // in the making; nil where none is due
	samples proof.Samples
	drawn   []drawn           // generators of the passes of the step
	mine    map[string][]bool // see share, by kind of the parts
	writer  proofWriter
}

// drawn is a generator of random numbers, and its state before the pass.
type drawn struct {
	*tensor.Generator
	was []byte
}

// provePart is a tensor with what the state of the run is kept under.
type provePart struct {
	checkpoint.Part
	rows []int64 // that Local has, of a gradient by rows
	none bool    // there is no gradient

	ofFirst bool // ranks may hold other values, of which the first rank's are saved
}

// expectProof begins the proof of the checkpoint that has the state as it is now.
func (r *trainer[B]) expectProof(ctx context.Context) error {
	p := &proof.Proof{Step: r.step, Made: r.made()}
	var err error
	if p.Before, err = r.stateDigests(ctx, false); err != nil {
		return r.errorf("prove step %d: %w", r.step, err)
	}
	r.recorder.proof, r.recorder.samples, r.recorder.drawn = p, proof.Samples{}, nil
	return nil
}

// made says how this rank computes.
func (r *trainer[B]) made() proof.Made {
	return proof.Made{
		Task: r.task.Name, Ranks: r.axes.World.Size(), Strategy: r.strategy(), Threads: tensor.NumThreads(),
		Kernels: instructions(), Wire: r.axes.World.Transport(), DType: r.o.DType,
	}
}

// instructions says which ones of the processor the kernels may use.
func instructions() string {
	switch {
	case runtime.GOARCH != "amd64":
		return runtime.GOARCH
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512BF16:
		return "amd64 avx512 bf16"
	case cpu.X86.HasAVX512F:
		return "amd64 avx512"
	case cpu.X86.HasAVX2:
		return "amd64 avx2"
	}
	return "amd64"
}

// sampled notes a batch of the step.
func (p *recorder) sampled(batch, feed any) {
	if p.proof == nil {
		return
	}
	var ids []proof.ID
	if feed, ok := feed.(ordered); ok {
		for _, k := range feed.Keys() {
			ids = append(ids, proof.ID(k))
		}
	}
	p.samples.Add(proof.SamplesOf(batch, ids))
}

// draws notes the generator of a pass.
func (p *recorder) draws(g *tensor.Generator) *tensor.Generator {
	if p.proof != nil {
		p.drawn = append(p.drawn, drawn{g, g.State()})
	}
	return g
}

// endProof completes the proof with the step that was just done. It returns nil where none is
// due, or where the step was not finite and nothing can be compared.
func (r *trainer[B]) endProof(ctx context.Context, all share) (*proof.Proof, error) {
	p := r.recorder.proof
	if p == nil {
		return nil, nil
	}
	r.recorder.proof = nil
	p.Loss, p.Norm = all.loss, all.norm
	for _, g := range r.opt.Groups() {
		p.Rates = append(p.Rates, proof.Rate{LR: g.LR(), Momentum: g.Momentum()})
	}
	state := r.feed.State()
	p.Batch.Order, p.Batch.Position = state.Order, state.Position
	random := int64(0)
	for _, g := range r.recorder.drawn {
		if !bytes.Equal(g.State(), g.was) {
			random = 1
		}
	}
	s := r.recorder.samples
	if !r.axes.writesSamples() { // another rank has the same samples
		s = proof.Samples{}
	}
	sums, err := r.sumNumbers(ctx, []int64{s.Count, int64(s.IDs), int64(s.Contents), random})
	if err != nil {
		return nil, r.errorf("prove step %d: %w", p.Step, err)
	}
	p.Batch.Samples = proof.Samples{Count: sums[0], IDs: uint64(sums[1]), Contents: uint64(sums[2])}
	p.Made.Random = sums[3] > 0
	if p.Gradients, err = r.digests(ctx, "gradients", r.gradientParts(), true); err != nil {
		return nil, r.errorf("prove step %d: %w", p.Step, err)
	}
	if p.After, err = r.stateDigests(ctx, true); err != nil {
		return nil, r.errorf("prove step %d: %w", p.Step, err)
	}
	p.Made.Batched = r.wroteBuffers(p)
	if !p.Finite() {
		return nil, nil
	}
	return p, nil
}

// keepProof has the proof that is due written beside its checkpoint, once the step after it is
// done, and tells of proofs that have ended.
func (r *trainer[B]) keepProof(ctx context.Context, all share) error {
	if err := r.provers.poll(ctx); err != nil {
		return r.errorf("%w", err)
	}
	if step, ended, err := r.recorder.writer.poll(); ended {
		r.wroteProof(ctx, step, err)
	}
	p, err := r.endProof(ctx, all)
	if p == nil || err != nil || r.axes.World.Rank() != 0 {
		return err
	}
	text, err := p.Encode()
	if err != nil {
		r.wroteProof(ctx, p.Step, err)
		return nil
	}
	r.endWriter(ctx)
	r.recorder.writer.begin(ctx, r.o.SaveTo, p.Step, text)
	return nil
}

// endWriter waits until the proof that is being written is there.
func (r *trainer[B]) endWriter(ctx context.Context) {
	if step, ended, err := r.recorder.writer.end(); ended {
		r.wroteProof(ctx, step, err)
	}
}

// wroteProof has a checkpoint proved, if its proof was written.
func (r *trainer[B]) wroteProof(ctx context.Context, step int, err error) {
	switch {
	case errors.Is(err, checkpoint.ErrNone): // who saved it has said so
	case err != nil: // the run itself is well
		r.report.Notice(fmt.Sprintf("the checkpoint of step %d has no proof: %v", step, err))
	default:
		r.provers.begin(ctx, step)
	}
}

// endProofs waits for the proofs that are under way at the end of a run.
func (r *trainer[B]) endProofs(ctx context.Context) error {
	r.endWriter(ctx)
	return r.provers.wait(ctx)
}

// readProofFile returns the proof of a checkpoint as text, nil if there is none.
func readProofFile(ck *checkpoint.Checkpoint) ([]byte, error) {
	name := proof.FileName
	if ck.Name != "" {
		name = ck.Name + "/" + name
	}
	text, err := storage.ReadFile(ck.Context(), ck.Storage(), name, proof.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// wroteBuffers reports whether the step changed what is no parameter.
func (r *trainer[B]) wroteBuffers(p *proof.Proof) bool {
	for _, b := range nn.Buffers(r.model) {
		if was, ok := p.Before.Weights[b.Name()]; ok && was.Sum != p.After.Weights[b.Name()].Sum {
			return true
		}
	}
	return false
}

// stateDigests returns the digests of all that a checkpoint saves. Of the optimizer's state
// before the step only bits are compared; those of the weights tell how large the update is.
func (r *trainer[B]) stateDigests(ctx context.Context, after bool) (s proof.State, err error) {
	weights := proveParts(r.weightParts())
	buffers := make(map[string]bool)
	for _, b := range nn.Buffers(r.model) {
		buffers[b.Name()] = true
	}
	for i, p := range weights {
		weights[i].ofFirst = buffers[p.Name]
	}
	if s.Weights, err = r.digests(ctx, "weights", weights, true); err != nil {
		return s, err
	}
	s.Optimizer, err = r.digests(ctx, "optimizer", proveParts(r.optimizerParts()), after)
	return s, err
}

func proveParts(parts []checkpoint.Part) []provePart {
	out := make([]provePart, len(parts))
	for i, p := range parts {
		out[i] = provePart{Part: p}
	}
	return out
}

// gradientParts returns what this rank holds of the gradients, which lie as the parameters do.
func (r *trainer[B]) gradientParts() []provePart {
	trained := make(map[*nn.Parameter]bool)
	for _, p := range r.params {
		trained[p] = true
	}
	var parts []provePart
	params, at := residences(r.model)
	for i, p := range params {
		if !trained[p] {
			continue
		}
		grad, rows := p.Grad(), p.RowGrad()
		of := provePart{Part: part(nn.NamedTensor{Name: p.Name(), Tensor: grad}, at[i])}
		if rows != nil {
			of.Local, of.Shape, of.rows = rows.Rows, p.Data().Shape(), rows.IDs.Int64s()
		}
		if of.none = of.Local == nil; of.none {
			of.Local = p.Data() // for its shape
		}
		parts = append(parts, of)
	}
	return parts
}

// digests returns the digests of whole tensors, the same on all ranks, each of which
// digests its share. The parts of a kind are the same tensors each time. near asks for
// projections.
func (r *trainer[B]) digests(ctx context.Context, kind string, parts []provePart, near bool) (proof.Digests, error) {
	mine, ok := r.recorder.mine[kind]
	if !ok {
		var err error
		if mine, err = r.share(ctx, parts); err != nil {
			return nil, err
		}
		if r.recorder.mine == nil {
			r.recorder.mine = make(map[string][]bool)
		}
		r.recorder.mine[kind] = mine
	}
	work := make([]*proof.Part, len(parts))
	for i, p := range parts {
		if !mine[i] || p.none {
			continue
		}
		work[i] = &proof.Part{Local: p.Local, Shape: p.Shape, Rows: p.rows, Near: near, IsGradient: kind == "gradients"}
		if p.Mesh != nil && p.rows == nil {
			boxes, err := p.Boxes()
			if err != nil {
				return nil, fmt.Errorf("tensor %q: %w", p.Name, err)
			}
			work[i].Boxes = boxes
		}
	}
	digests, err := proof.DigestAll(work)
	if err != nil {
		return nil, err
	}
	if err := r.sumDigests(ctx, digests); err != nil {
		return nil, err
	}
	named := make(proof.Digests, len(parts))
	for i, p := range parts {
		named[p.Name] = digests[i]
	}
	return named, nil
}

// share returns which of the parts this rank digests: of the ranks that hold the same boxes of
// a tensor, one does. The ranks tell each other what they hold.
func (r *trainer[B]) share(ctx context.Context, parts []provePart) ([]bool, error) {
	world := r.axes.World
	mine := make([]bool, len(parts))
	if world.Size() == 1 {
		for i := range mine {
			mine[i] = true
		}
		return mine, nil
	}
	held := make([]int64, len(parts)) // a number for the boxes, 0 for none
	for i, p := range parts {
		if p.Away || p.Mesh != nil && !p.Mesh.IsMember() {
			continue
		}
		sum := fnv.New64a()
		if p.Mesh != nil {
			boxes, err := p.Boxes()
			if err != nil {
				return nil, fmt.Errorf("tensor %q: %w", p.Name, err)
			}
			if len(boxes) == 0 {
				continue
			}
			fmt.Fprint(sum, boxes)
		}
		held[i] = int64(sum.Sum64() | 1)
	}
	all := tensor.New(tensor.CPU(), tensor.Int64, world.Size(), len(parts))
	if err := world.AllGather(ctx, all, tensor.FromInt64(held)); err != nil {
		return nil, err
	}
	of := all.Int64s()
	for i, p := range parts {
		if held[i] == 0 {
			continue
		}
		before, holders := 0, 0
		for rank := range world.Size() {
			if of[rank*len(parts)+i] == held[i] {
				if holders++; rank < world.Rank() {
					before++
				}
			}
		}
		if mine[i] = before == i%holders; p.ofFirst {
			mine[i] = before == 0
		}
	}
	return mine, nil
}

// sumDigests adds up the digests of all ranks.
func (r *trainer[B]) sumDigests(ctx context.Context, digests []proof.Digest) error {
	if r.axes.World.Size() == 1 || len(digests) == 0 {
		return nil
	}
	var whole []int64
	var broken []float64
	for _, d := range digests {
		whole = append(whole, d.Elems, int64(d.Sum), d.Tiny)
		broken = append(append(broken, d.Squares), d.Signs[:]...)
	}
	whole, err := r.sumNumbers(ctx, whole)
	if err != nil {
		return err
	}
	t := tensor.FromFloat64(broken)
	if err := r.axes.World.AllReduce(ctx, t, dist.Sum); err != nil {
		return err
	}
	t.WithFloat64s(func(sums []float64) { broken = slices.Clone(sums) })
	each := len(broken) / len(digests)
	for i := range digests {
		d := &digests[i]
		d.Elems, d.Sum, d.Squares = whole[3*i], uint64(whole[3*i+1]), broken[i*each]
		d.Tiny = whole[3*i+2]
		copy(d.Signs[:], broken[i*each+1:])
	}
	return nil
}

// sumNumbers adds up the numbers of all ranks; sums wrap around.
func (r *trainer[B]) sumNumbers(ctx context.Context, numbers []int64) ([]int64, error) {
	if r.axes.World.Size() == 1 {
		return numbers, nil
	}
	t := tensor.FromInt64(numbers)
	if err := r.axes.World.AllReduce(ctx, t, dist.Sum); err != nil {
		return nil, err
	}
	return t.Int64s(), nil
}
