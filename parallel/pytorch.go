// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// PyTorchOptions say how the other ranks' DistributedDataParallel was made;
// the zero value is its defaults. What is not here goes by the options that any
// DDP has: [KeepBuffers] for broadcast_buffers=False, [BucketBytes] for
// bucket_cap_mb (from 2.4 on an explicit cap is that of the first bucket too, which has
// 1 MiB before).
type PyTorchOptions struct {
	// FindUnused is find_unused_parameters: passes need not reach every
	// parameter, and one that no rank has reached keeps its gradient.
	FindUnused bool
	// StaticGraph is static_graph: every pass reaches the parameters that the
	// first has reached.
	StaticGraph bool
	// SkipInitSync is init_sync=False: NewDDP neither compares the models nor
	// sends rank 0's.
	SkipInitSync bool
	// Version is that of the other ranks, by default what the group has found out
	// ([dist.Group.PyTorchVersion]). It matters with [KeepBuffers] alone:
	// "1.13" sends buffers when a DDP is made, and at the end of join, even so.
	Version string
	// InitBuffers sends buffers when a DDP is made, with [KeepBuffers] too:
	// forward_sync_buffers=False, which PyTorch has from 2.15 on.
	InitBuffers bool
}

// PyTorch makes a DDP keep step with PyTorch's DistributedDataParallel, so that
// the ranks of a group may be of either kind: it issues the collectives that
// PyTorch's issues, in its order and with its layouts, and none besides. Ranks
// of one group need the same parameters in the same order (a module's own ones
// before those of its children, as named_parameters has them) and the same
// options. TORCH_DISTRIBUTED_DEBUG must not be DETAIL on PyTorch's ranks, which
// adds collectives, and they must not register communication hooks.
//
// A gradient is multiplied by 1/ranks when it is copied into its bucket, and the
// sums are copied back: gradients of a pass that is not synchronised are whole,
// unlike those of a DDP without this option.
//
// Every Forward may broadcast buffers, in evaluation too: as in PyTorch, the
// first evaluation after a training pass does, so all ranks must run it.
func PyTorch(o PyTorchOptions) DDPOption {
	return func(all *ddpOptions) { all.pytorch = &o }
}

// besidePyTorch adds to an error of a DDP without the option [PyTorch] what may be wrong,
// where another rank has sent what does not belong to this one's call.
func besidePyTorch(err error) error {
	return outOfStep(err, "where other ranks run PyTorch's DistributedDataParallel, NewDDP needs the option parallel.PyTorch")
}

// What may differ between ranks whose collectives do.
const (
	sameState   = "have all ranks' models the same buffers and frozen parameters, in the same order, and all DDPs the same broadcast_buffers (KeepBuffers)?"
	sameOptions = "have all ranks' DDPs the same find_unused_parameters (FindUnused), static_graph (StaticGraph), broadcast_buffers (KeepBuffers) and bucket_cap_mb (BucketBytes)?"
)

// outOfStep adds to an error what may be wrong, where another rank has sent what does
// not belong to this one's call.
func outOfStep(err error, why string) error {
	if dtypes := (*PeerDTypeError)(nil); errors.As(err, &dtypes) && dtypes.There != "" {
		return err
	}
	if wire := (*dist.WireError)(nil); errors.As(err, &wire) {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// PeerModelError says that a rank does not train the parameters that this one
// does.
type PeerModelError struct {
	Rank  int    // the other rank
	Param string // the parameter of this rank, empty when it is their number that differs
	// What the other rank has sent, and what this one has: the number of
	// parameters, or the sizes and strides of one.
	Sent, Have []int64
}

func (e *PeerModelError) Error() string {
	if e.Param == "" {
		return fmt.Sprintf("ddp: rank %d trains %d parameters and this rank %d: build the same model on every rank, with the same ones frozen", e.Rank, e.Sent[0], e.Have[0])
	}
	half := len(e.Have) / 2
	if len(e.Sent) == len(e.Have) && slices.Equal(e.Sent[:half], e.Have[:half]) {
		return fmt.Sprintf("ddp: rank %d has %s %v with the strides %v, this rank with %v: make it contiguous there", e.Rank, e.Param, e.Have[:half], e.Sent[half:], e.Have[half:])
	}
	return fmt.Sprintf("ddp: rank %d sent the sizes and strides %v where this rank has %s with %v: build the same model on every rank, with its parameters in the same order", e.Rank, e.Sent, e.Param, e.Have)
}

// UnusedError says that a synchronised pass did not reach parameters, which a
// DDP of PyTorch's kind must know of beforehand.
type UnusedError struct {
	Params []string
	Static bool // the first pass reached them
}

func (e *UnusedError) Error() string {
	what := strings.Join(e.Params[:min(len(e.Params), 5)], ", ")
	if n := len(e.Params) - 5; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	if e.Static {
		return fmt.Sprintf("ddp: the pass did not reach %s, which the first pass did, although StaticGraph says that all passes are alike", what)
	}
	return fmt.Sprintf("ddp: the pass did not reach %s; the other ranks wait for these gradients. Set FindUnused (find_unused_parameters=True) on every rank, or freeze them everywhere", what)
}

// pytorchDDP is the part of a DDP that keeps step with PyTorch's. A parameter's
// index means the same on every rank.
type pytorchDDP struct {
	o       PyTorchOptions
	group   *dist.Group
	limits  []int // sizes at which buckets are full
	params  []*nn.Parameter
	indexOf map[*nn.Parameter]int
	state   *coalesced // what the ranks have in common after Join
	buffers *coalesced // what forward passes broadcast, nil for nothing

	buckets  []*pytorchBucket
	bucketOf []int // of each parameter
	offsetOf []int // in its bucket's views

	rebuilt  bool  // buckets follow the order of the backward pass
	order    []int // in which the gradients of the first pass came
	syncNext bool  // the next forward pass broadcasts buffers
	usedHere []bool
	used     *tensor.Tensor // how many ranks have used each parameter, int32
	unused   []bool         // in a static graph, by its first pass
	join     *joining       // inside Join
	divisor  float64

	// of the backward pass under way
	reducing bool // from its start to its end, if it is synchronised
	ready    []bool
	launched int // buckets 0 … launched-1 have been handed to the group
}

// pytorchBucket is a run of gradients that are reduced together.
type pytorchBucket struct {
	indices []int
	flat    *tensor.Tensor
	views   []*tensor.Tensor
	missing int
	work    *dist.Work
}

func newPyTorchDDP(ctx context.Context, model any, group *dist.Group, o *ddpOptions) (*pytorchDDP, error) {
	p := &pytorchDDP{o: *o.pytorch, group: group, syncNext: true, indexOf: map[*nn.Parameter]int{}, divisor: float64(group.Size())}
	all, buffers := inPyTorchOrder(nn.Parameters(model), (*nn.Parameter).Name), inPyTorchOrder(nn.Buffers(model), (*nn.Buffer).Name)
	var numElems []int
	var dtypes []tensor.DType
	for _, param := range all {
		if param.Frozen {
			continue
		}
		if param.Sparse {
			return nil, fmt.Errorf("ddp: %s takes its gradient by rows, which ranks of PyTorch reduce in a way that is not spoken here: leave Sparse unset, and sparse=False there", param.Name())
		}
		p.indexOf[param] = len(p.params)
		p.params = append(p.params, param)
		numElems, dtypes = append(numElems, param.Data().NumElems()), append(dtypes, param.Data().DType())
	}
	if len(p.params) == 0 {
		return nil, errors.New("ddp: no parameter of the model is trained, which PyTorch's DDP refuses: freeze less, or use no DDP on any rank")
	}
	p.ready, p.usedHere = make([]bool, len(p.params)), make([]bool, len(p.params))
	p.used = tensor.New(tensor.CPU(), tensor.Int32, len(p.params))
	if !o.keepBuffers && len(buffers) > 0 {
		p.buffers = newCoalesced(buffers, func(b *nn.Buffer) (string, *tensor.Tensor) { return b.Name(), b.Data })
	}
	if !p.o.SkipInitSync {
		if err := p.verify(ctx); err != nil {
			return nil, err
		}
	}
	var state []nn.NamedTensor
	for _, param := range all {
		state = append(state, nn.NamedTensor{Name: param.Name(), Tensor: param.Data()})
	}
	withBuffers := slices.Clone(state)
	for _, b := range buffers {
		withBuffers = append(withBuffers, nn.NamedTensor{Name: b.Name(), Tensor: b.Data})
	}
	named := func(s nn.NamedTensor) (string, *tensor.Tensor) { return s.Name, s.Tensor }
	p.state = newCoalesced(state, named)
	atFirst := p.state
	version := cmp.Or(p.o.Version, group.PyTorchVersion())
	old := version == "1.13" || strings.HasPrefix(version, "1.13.")
	if p.buffers != nil || old || p.o.InitBuffers {
		atFirst = newCoalesced(withBuffers, named)
		if p.buffers != nil || old {
			p.state = atFirst
		}
	}
	if !p.o.SkipInitSync {
		if err := atFirst.broadcast(ctx, group, 0); err != nil {
			return nil, outOfStep(err, sameState)
		}
		if group.Rank() != 0 {
			if err := atFirst.misread(0); err != nil {
				return nil, err
			}
		}
		atFirst.release()
	}
	first := []int{int(^uint(0) >> 1)} // one bucket a dtype until the order is known
	p.limits = []int{o.firstBucketBytes, o.bucketBytes}
	if p.o.FindUnused && !p.o.StaticGraph {
		first = p.limits
	}
	assigned := assignBuckets(numElems, dtypes, first, nil)
	slices.Reverse(assigned)
	p.setBuckets(assigned)
	for _, param := range p.params {
		param.OnGradReady(p.gradReady)
	}
	return p, nil
}

// verify compares what is trained with the other ranks: the number of
// parameters with all, their sizes and strides with rank 0's.
func (p *pytorchDDP) verify(ctx context.Context) error {
	counts := tensor.New(tensor.CPU(), tensor.Int64, p.group.Size())
	if err := p.group.AllGather(ctx, counts, tensor.FromInt64([]int64{int64(len(p.params))})); err != nil {
		return fmt.Errorf("ddp: compare the numbers of parameters of the ranks: %w", err)
	}
	for rank, n := range counts.Int64s() {
		if n != int64(len(p.params)) {
			return &PeerModelError{Rank: rank, Sent: []int64{n}, Have: []int64{int64(len(p.params))}}
		}
	}
	var mine []int64
	ends := make([]int, len(p.params))
	for i, param := range p.params {
		shape := param.Data().Shape()
		for _, n := range shape {
			mine = append(mine, int64(n))
		}
		mine = append(mine, stridesOf(shape)...)
		ends[i] = len(mine)
	}
	sent := tensor.FromInt64(slices.Clone(mine))
	if err := p.group.Broadcast(ctx, sent, 0); err != nil {
		return fmt.Errorf("ddp: compare the sizes of the parameters with rank 0's: %w", err)
	}
	theirs, start := sent.Int64s(), 0
	for i, end := range ends {
		if !slices.Equal(theirs[start:end], mine[start:end]) {
			return &PeerModelError{Rank: 0, Param: p.params[i].Name(), Sent: slices.Clone(theirs[start:end]), Have: mine[start:end]}
		}
		start = end
	}
	return nil
}

// stridesOf returns PyTorch's strides of a contiguous tensor. A dim of nothing
// counts as one of one element.
func stridesOf(shape []int) []int64 {
	strides := make([]int64, len(shape))
	stride := int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d], stride = stride, stride*int64(max(shape[d], 1))
	}
	return strides
}

// setBuckets lays out the buckets anew.
func (p *pytorchDDP) setBuckets(assigned [][]int) {
	p.buckets = make([]*pytorchBucket, len(assigned))
	p.bucketOf, p.offsetOf = make([]int, len(p.params)), make([]int, len(p.params))
	alloc := memoryFor(p.group)
	for i, indices := range assigned {
		like := make([]*tensor.Tensor, len(indices))
		for j, k := range indices {
			like[j] = p.params[k].Data()
			p.bucketOf[k], p.offsetOf[k] = i, j
		}
		b := &pytorchBucket{indices: indices}
		b.flat, b.views = flatten(alloc, like)
		p.buckets[i] = b
	}
}

// rebuildDue says whether the next forward pass lays out the buckets anew, in
// the order in which the gradients came: not while any of them may be missing.
func (p *pytorchDDP) rebuildDue() bool {
	return !p.rebuilt && (p.o.StaticGraph || !p.o.FindUnused) && len(p.order) > 0
}

// rebuild takes rank 0's layout, which is sent in two parts: the parameters'
// indices bucket after bucket, with the number of buckets behind them, and the
// buckets' sizes.
func (p *pytorchDDP) rebuild(ctx context.Context) error {
	var numElems []int
	var dtypes []tensor.DType
	for _, k := range p.order {
		d := p.params[k].Data()
		numElems, dtypes = append(numElems, d.NumElems()), append(dtypes, d.DType())
	}
	assigned := assignBuckets(numElems, dtypes, p.limits, p.order)
	indices := make([]int64, 0, len(p.params)+1)
	var sizes []int64
	for _, b := range assigned {
		for _, k := range b {
			indices = append(indices, int64(k))
		}
		sizes = append(sizes, int64(len(b)))
	}
	indices = append(indices, int64(len(assigned)))
	if err := p.broadcastInt32s(ctx, indices); err != nil {
		return fmt.Errorf("ddp: take over the order of rank 0's buckets: %w", err)
	}
	num := indices[len(p.params)]
	if num < 1 || num > int64(len(p.params)) {
		return fmt.Errorf("ddp: rank 0 sent %d buckets for %d parameters", num, len(p.params))
	}
	sizes = append(sizes, make([]int64, len(p.params))...)[:num]
	if err := p.broadcastInt32s(ctx, sizes); err != nil {
		return fmt.Errorf("ddp: take over the sizes of rank 0's buckets: %w", err)
	}
	assigned, err := p.layoutOf(indices[:len(p.params)], sizes)
	if err != nil {
		return err
	}
	p.setBuckets(assigned)
	p.rebuilt, p.order = true, nil
	return nil
}

// layoutOf checks what rank 0 has sent.
func (p *pytorchDDP) layoutOf(indices, sizes []int64) ([][]int, error) {
	seen := make([]bool, len(p.params))
	var assigned [][]int
	at := 0
	for i, size := range sizes {
		if size < 1 || size > int64(len(indices)-at) {
			return nil, fmt.Errorf("ddp: rank 0 sent bucket %d of %d with %d of %d parameters", i, len(sizes), size, len(indices))
		}
		var b []int
		for _, k := range indices[at : at+int(size)] {
			if k < 0 || k >= int64(len(p.params)) || seen[k] {
				return nil, fmt.Errorf("ddp: rank 0 sent buckets with parameter %d of %d, out of range or twice", k, len(p.params))
			}
			seen[k] = true
			if d := p.params[k].Data().DType(); len(b) > 0 && d != p.params[b[0]].Data().DType() {
				return nil, fmt.Errorf("ddp: rank 0 sent a bucket with %s, which is %s here, and %s, which is %s: the ranks' models have different dtypes",
					p.params[b[0]].Name(), p.params[b[0]].Data().DType(), p.params[k].Name(), d)
			}
			b = append(b, int(k))
		}
		assigned = append(assigned, b)
		at += int(size)
	}
	if at != len(indices) {
		return nil, fmt.Errorf("ddp: rank 0 sent buckets with %d of %d parameters", at, len(indices))
	}
	return assigned, nil
}
