// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// ZeroRedundancyOptimizer divides the work and the state of an optimizer among the ranks of a
// group (ZeRO stage 1, Rajbhandari et al. 2020). Every rank has all parameters and all
// gradients, as under [DDP]. A rank has the state of some of the parameters and updates them
// alone. Then all ranks get the new values from the ranks that have updated them.
//
// A rank's part is chosen by PyTorch's rule, see [ZeroRedundancyOptimizer.Owner]. Its parameters
// lie in a few pieces of memory, and a piece is broadcast while the rank updates the next one.
//
// Every value is the one that the optimizer gives on one rank, bit for bit. A step sends the
// bytes of the parameters besides those of the gradients: half as much again as DDP alone.
//
// Groups, learning rates and counts are those of all parameters on every rank, so a schedule
// sees no difference. State has all names on every rank, and the tensors of others' parameters
// are on tensor.Meta. Checkpoints of package train save of each rank what it has, and load into
// any number of ranks, with or without the division.
type ZeroRedundancyOptimizer struct {
	optim.Optimizer // of all parameters, with the state of those of this rank
	ranks           ranks
	owner           map[*nn.Parameter]int
	pieces          [][]piece // by rank: its parameters, in turns
	turns           [][]*nn.Parameter
}

// piece is some parameters of a rank, in memory back to back.
type piece struct {
	params []*nn.Parameter
	flat   *tensor.Tensor
}

// NewZeroRedundancyOptimizer makes an optimizer of params by newOptimizer, and divides it among
// the ranks of group. Every rank of the group calls it, after the model has been wrapped by
// [NewDDP] over this group. newOptimizer may make several groups of parameters. An optimizer
// that is not of package optim, and parameters or options that differ between ranks, are errors.
//
// The values of the parameters move to other memory: what was taken from nn.Parameter.Data
// before is no longer the parameter's.
func NewZeroRedundancyOptimizer(ctx context.Context, group *dist.Group, params []*nn.Parameter, newOptimizer func(params []*nn.Parameter) optim.Optimizer) (*ZeroRedundancyOptimizer, error) {
	z, err := newZero(ctx, group, params, newOptimizer, bucketSize)
	if err != nil {
		return nil, fmt.Errorf("zero redundancy optimizer: %w", err)
	}
	return z, nil
}

// newZero closes a piece when it has pieceSize bytes, of all that a rank has on average.
func newZero(ctx context.Context, group *dist.Group, params []*nn.Parameter, newOptimizer func(params []*nn.Parameter) optim.Optimizer, pieceSize func(total int) int) (*ZeroRedundancyOptimizer, error) {
	wrong := checkDivisible(params)
	var opt optim.Optimizer
	if wrong == nil {
		if opt = newOptimizer(params); opt == nil {
			wrong = errors.New("newOptimizer returned nil, want an optimizer of the parameters")
		}
	}
	if err := sameOptimizer(ctx, group, opt, wrong); err != nil {
		return nil, err
	}
	z := &ZeroRedundancyOptimizer{Optimizer: opt, owner: make(map[*nn.Parameter]int)}
	var err error
	if z.ranks, err = newRanks(ctx, group, "zero"); err != nil {
		return nil, err
	}
	total, numElems := 0, [][]int{}
	for _, g := range opt.Groups() {
		var sizes []int
		for _, p := range g.Params() {
			sizes, total = append(sizes, p.Data().NumElems()), total+p.Data().NumElems()*p.Data().DType().Size()
		}
		numElems = append(numElems, sizes)
	}
	own := make([][]*nn.Parameter, group.Size())
	for _, a := range partition(numElems, group.Size()) {
		p := opt.Groups()[a.group].Params()[a.param]
		z.owner[p], own[a.rank] = a.rank, append(own[a.rank], p)
	}
	if err := optim.Keep(opt, z.Holds); err != nil {
		return nil, err
	}
	for _, ps := range own {
		z.pieces = append(z.pieces, layOutPieces(group, ps, pieceSize(total/group.Size())))
	}
	for _, p := range z.pieces[group.Rank()] {
		z.turns = append(z.turns, p.params)
	}
	// Ranks take as many turns as the one with most pieces: each turn ends with broadcasts.
	most := slices.MaxFunc(z.pieces, func(a, b []piece) int { return cmp.Compare(len(a), len(b)) })
	for len(z.turns) < max(1, len(most)) {
		z.turns = append(z.turns, nil)
	}
	return z, nil
}

// checkDivisible reports a parameter that a rank does not have all of.
func checkDivisible(params []*nn.Parameter) error {
	for i, p := range params {
		switch {
		case p == nil:
			return fmt.Errorf("param %d is nil", i)
		case p.Whole() != nil:
			return fmt.Errorf("%s is a shard, of shape %v of %v: an FSDP divides the optimizer's state already; use its parameters with a plain optimizer", p.Name(), p.Data().Shape(), p.Whole())
		case p.Data().Device() == tensor.Meta:
			return fmt.Errorf("%s is on device %s, which has no data: a rank of ZeRO-1 has all parameters", p.Name(), tensor.Meta.Name())
		}
	}
	return nil
}

// sameOptimizer returns an error on every rank if a rank has another optimizer than rank 0, or
// none because something is wrong there.
func sameOptimizer(ctx context.Context, group *dist.Group, opt optim.Optimizer, wrong error) error {
	var text bytes.Buffer
	if wrong != nil {
		fmt.Fprintf(&text, "no optimizer: %v\n", wrong)
	} else {
		fmt.Fprintf(&text, "a %T\n", optim.Unwrap(opt))
		options := optim.ParamGroups(opt)
		for i, g := range opt.Groups() {
			if i < len(options) {
				fmt.Fprintf(&text, "group %d with options %v\n", i, options[i].Options)
			}
			for _, p := range g.Params() {
				fmt.Fprintf(&text, "group %d with %s %v%v\n", i, p.Name(), p.Data().DType(), p.Data().Shape())
			}
		}
	}
	rank, texts, err := firstDifference(ctx, group, text.Bytes())
	switch {
	case err != nil:
		return fmt.Errorf("compare the optimizers of the ranks: %w", err)
	case rank < 0:
		return wrong
	}
	lines := [2][][]byte{}
	for i, t := range texts {
		lines[i] = append(bytes.Split(bytes.TrimSuffix(t, []byte("\n")), []byte("\n")), []byte("nothing more"))
	}
	at := 0
	for at < min(len(lines[0]), len(lines[1]))-1 && bytes.Equal(lines[0][at], lines[1][at]) {
		at++
	}
	return &OptimizerMismatchError{Rank: rank, Have0: string(lines[0][at]), HasRank: string(lines[1][at])}
}

// OptimizerMismatchError says that the ranks of a group do not have the same optimizer: the first
// thing that differs between rank 0 and another rank.
type OptimizerMismatchError struct {
	Rank           int // the lowest rank that differs from rank 0
	Have0, HasRank string
}

func (e *OptimizerMismatchError) Error() string {
	return fmt.Sprintf("the ranks have different optimizers: rank 0 has %s where rank %d has %s; make the same optimizer of the same parameters on every rank", e.Have0, e.Rank, e.HasRank)
}

// assigned is a parameter of a group, and the rank that has its state.
type assigned struct{ group, param, rank int }

// partition is PyTorch's rule for who has which parameter's state: group by group, the largest
// first, each goes to the rank with the fewest elements so far, the lowest of them.
func partition(numElems [][]int, numRanks int) []assigned {
	var out []assigned
	totals := make([]int, numRanks)
	for g, sizes := range numElems {
		order := make([]int, len(sizes))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(sizes[j], sizes[i]) })
		for _, i := range order {
			rank := slices.Index(totals, slices.Min(totals))
			totals[rank] += sizes[i]
			out = append(out, assigned{g, i, rank})
		}
	}
	return out
}

// layOutPieces moves the values of parameters into pieces of memory, each of which is closed
// when it has as many bytes as the limit.
func layOutPieces(group *dist.Group, params []*nn.Parameter, limit int) []piece {
	if group.Size() == 1 {
		return []piece{{params: params}}
	}
	var pieces []piece
	for len(params) > 0 {
		n, size, dev := 0, 0, params[0].Data().Device()
		var values []*tensor.Tensor
		for n < len(params) && size < limit && params[n].Data().Device() == dev {
			d := params[n].Data()
			values, size = append(values, d), size+d.NumElems()*d.DType().Size()
			n++
		}
		flat, views := flatten(memoryFor(group), values)
		for i, p := range params[:n] {
			views[i].CopyFrom(values[i])
			p.SetData(views[i])
		}
		pieces, params = append(pieces, piece{params[:n], flat}), params[n:]
	}
	return pieces
}

// Update applies one update: this rank updates its parameters from its gradients, and gets the
// values of all others. Every rank of the group calls it. scale is that of optim.Optimizer.Step.
func (z *ZeroRedundancyOptimizer) Update(ctx context.Context, scale *tensor.Tensor) error {
	type broadcast struct {
		*mesh.Pending
		of   piece
		from int
	}
	var under []broadcast
	err := optim.StepInTurns(z.Optimizer, scale, z.turns, func(turn int) error {
		for rank, pieces := range z.pieces {
			if turn < len(pieces) && pieces[turn].flat != nil {
				value := z.ranks.value(pieces[turn].flat, mesh.Varying(), pieces[turn].flat.Shape()...)
				under = append(under, broadcast{mesh.BroadcastAsync(ctx, z.ranks.axis, rank, value), pieces[turn], rank})
			}
		}
		return nil
	})
	for _, b := range under {
		if e := arrived(ctx, b.Pending); e != nil && err == nil {
			err = fmt.Errorf("broadcast %s from rank %d: %w", b.of, b.from, e)
		}
	}
	if err != nil {
		return fmt.Errorf("zero redundancy optimizer: %w", err)
	}
	return nil
}

// planned returns the broadcasts of an update.
func (z *ZeroRedundancyOptimizer) planned() (calls []plannedCall) {
	group := z.ranks.group()
	for rank, pieces := range z.pieces {
		for _, p := range pieces {
			if p.flat != nil {
				calls = append(calls, plannedCall{group, operation.Call{Op: operation.Broadcast, DType: operation.DType(p.flat.DType()), Root: rank, Count: p.flat.NumElems()}, group.LocalSize() > 1})
			}
		}
	}
	return calls
}

// String names the parameters of a piece.
func (p piece) String() string {
	switch n := len(p.params); n {
	case 0:
		return "nothing"
	case 1:
		return p.params[0].Name()
	default:
		return fmt.Sprintf("%s to %s", p.params[0].Name(), p.params[n-1].Name())
	}
}

// Step panics: an update communicates, and needs a context. Call [ZeroRedundancyOptimizer.Update],
// or [Update] in code for all optimizers.
func (*ZeroRedundancyOptimizer) Step(*tensor.Tensor) {
	panic(&tensor.Error{Op: "step", Msg: "the state is divided among ranks, so an update communicates: call parallel.Update(ctx, optimizer, scale) in place of Step"})
}

// Update applies one update of any optimizer: by its method Update, which communicates, or else
// by Step.
func Update(ctx context.Context, o optim.Optimizer, scale *tensor.Tensor) error {
	if u, ok := o.(interface {
		Update(ctx context.Context, scale *tensor.Tensor) error
	}); ok {
		return u.Update(ctx, scale)
	}
	o.Step(scale)
	return nil
}

// Unwrap returns the optimizer that was divided; see optim.Unwrap.
func (z *ZeroRedundancyOptimizer) Unwrap() optim.Optimizer { return z.Optimizer }

// Owner returns the rank that updates a parameter and has its state, -1 for a parameter that is
// not the optimizer's. It is chosen by PyTorch's rule: group by group, the largest parameter
// first, each goes to the rank that has the fewest elements so far.
func (z *ZeroRedundancyOptimizer) Owner(p *nn.Parameter) int {
	if rank, ok := z.owner[p]; ok {
		return rank
	}
	return -1
}

// Holds reports whether this rank has the state of a parameter.
func (z *ZeroRedundancyOptimizer) Holds(p *nn.Parameter) bool {
	return z.Owner(p) == z.ranks.group().Rank()
}

// Mesh returns the ranks among which the state is divided, as a mesh of one axis.
func (z *ZeroRedundancyOptimizer) Mesh() *mesh.Mesh { return z.ranks.mesh }

// ConsolidateState brings the state of all ranks to one rank, and returns it there: what State
// would return without the division. The other ranks get nil. Every rank calls it. Checkpoints
// do not need it: each rank saves what it has.
func (z *ZeroRedundancyOptimizer) ConsolidateState(ctx context.Context, to int) (nn.NamedTensors, error) {
	group := z.ranks.group()
	if to < 0 || to >= group.Size() {
		return nil, fmt.Errorf("zero redundancy optimizer: consolidate on rank %d: there are ranks 0 to %d", to, group.Size()-1)
	}
	owner := z.ownerByName()
	var out nn.NamedTensors
	for _, s := range z.State() {
		from, value, err := owner[stateOf(s.Name)], s.Tensor, error(nil)
		switch group.Rank() {
		case from:
			if to != from {
				err = group.Send(ctx, value, to)
			}
		case to:
			value = tensor.New(tensor.CPU(), s.Tensor.DType(), s.Tensor.Shape()...)
			err = group.Recv(ctx, value, from)
		}
		if err != nil {
			return nil, fmt.Errorf("zero redundancy optimizer: bring %s from rank %d to rank %d: %w", s.Name, from, to, err)
		}
		if group.Rank() == to {
			out = append(out, nn.NamedTensor{Name: s.Name, Tensor: value})
		}
	}
	return out, nil
}

// LoadState takes this rank's part of a whole state, as ConsolidateState returned it. If names,
// shapes or dtypes differ it changes nothing and returns an *optim.StateError.
func (z *ZeroRedundancyOptimizer) LoadState(saved nn.NamedTensors) error {
	owner := z.ownerByName()
	mine := func(all nn.NamedTensors) nn.NamedTensors {
		return slices.DeleteFunc(slices.Clone(all), func(s nn.NamedTensor) bool {
			rank, known := owner[stateOf(s.Name)]
			return known && rank != z.ranks.group().Rank()
		})
	}
	return optim.LoadState(mine(z.State()), mine(saved))
}

func (z *ZeroRedundancyOptimizer) ownerByName() map[string]int {
	out := make(map[string]int, len(z.owner))
	for p, rank := range z.owner {
		out[p.Name()] = rank
	}
	return out
}

// stateOf returns the name of the parameter whose state has a name.
func stateOf(name string) string {
	for i := range name {
		if name[i] == '.' {
			return name[i+1:]
		}
	}
	return name
}

// String says among how many ranks the state is divided.
func (z *ZeroRedundancyOptimizer) String() string {
	return fmt.Sprintf("optimizer state divided among %s (ZeRO-1)", countRanks(z.ranks.group().Size()))
}
