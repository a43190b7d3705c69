// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel/sharding"
	"github.com/cohort-ml/cohort/tensor"
)

// expertParallel splits the experts of mixtures ([nn.Experts]) over the axis ep. Each rank of the
// axis has samples of its own and some of the experts. At the call of the experts, a rank sends
// each row to the rank that has its expert, computes the rows that it gets, and sends the results
// back; the gradients take the same way in reverse.
//
//	rank 0                                rank 1
//	x [tokens, width], chosen             x [tokens, width], chosen
//	rows sorted by expert                 rows sorted by expert
//	   │ 0 1 │ 2 3 ──────────╮    ╭────────── 0 1 │ 2 3 │    counts, then rows
//	   ▼                     ╰────┼─────────────────────▼
//	experts 0 and 1  ◀────────────╯       experts 2 and 3
//	   │                                         │
//	results go back, and are added up where their token is
//
// The router runs on each rank as on one rank alone, on the tokens of the rank: what a capacity
// drops, and the losses of the router, do not depend on the axis. An expert's gradient has the
// rows of all ranks of the axis, so that it owes no sum over it.
type expertParallel struct {
	p      *Parallel
	group  *dist.Group
	layers []expertLayer
	of     map[*nn.Experts]*expertLayer
	params map[*nn.Parameter]bool // of the experts
}

// expertLayer is the experts of one mixture.
type expertLayer struct {
	path    string
	experts *nn.Experts
	owned   []int // how many experts each rank of the axis has
}

// newExpertParallel finds the experts of the model. It does not communicate.
func newExpertParallel(p *Parallel) (*expertParallel, error) {
	e := &expertParallel{p: p, of: map[*nn.Experts]*expertLayer{}, params: map[*nn.Parameter]bool{}}
	for path, m := range nn.Modules(p.Model) {
		if experts, ok := m.(*nn.Experts); ok {
			e.layers = append(e.layers, expertLayer{path: path, experts: experts})
		}
	}
	if len(e.layers) == 0 {
		return nil, errors.New("the model has no experts (nn.Experts) to split: leave the axis out, or use it for fsdp or replicate")
	}
	return e, nil
}

func (*expertParallel) axis() string { return expertAxis }

// lay cuts the experts' parameters along their first dim, by the chunk rule.
func (e *expertParallel) lay() error {
	size := e.size()
	for i := range e.layers {
		l := &e.layers[i]
		params := nn.Parameters(l.experts)
		if len(params) == 0 {
			continue
		}
		num := e.p.layOf(params[0]).shape[0]
		if chunk := (num + size - 1) / size; (num-1)/chunk != size-1 {
			return fmt.Errorf("%s has %d experts for %d ranks: ⌈%d/%d⌉ = %d experts a rank leave the last rank none; choose a number of ranks that divides the experts",
				l.path, num, size, num, size, chunk)
		}
		l.owned = chunkSizes(num, size)
		e.of[l.experts] = l
		for _, q := range params {
			lay := e.p.layOf(q)
			if len(lay.shape) == 0 || lay.shape[0] != num {
				return fmt.Errorf("%s has the shape %v: the first dim of an expert's parameters must be the %d experts", q.Name(), lay.shape, num)
			}
			lay.at[expertAxis] = mesh.Shard(0)
			delete(lay.owes, expertAxis)
			e.params[q] = true
		}
	}
	return nil
}

// size returns how many ranks the axis has.
func (e *expertParallel) size() int {
	for _, a := range e.p.mesh.Axes() {
		if a.Name == expertAxis {
			return a.Size
		}
	}
	return 1
}

// chunkSizes returns how many of a number of things each of n ranks has.
func chunkSizes(num, n int) []int {
	sizes := make([]int, n)
	chunk := (num + n - 1) / n
	for i := range sizes {
		sizes[i] = max(0, min(chunk, num-i*chunk))
	}
	return sizes
}

func (e *expertParallel) agreed() string {
	var b strings.Builder
	for _, l := range e.layers {
		fmt.Fprintf(&b, "experts of %s by rank: %v\n", l.path, l.owned)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (e *expertParallel) join(context.Context) (err error) {
	e.group, err = e.p.mesh.Group(expertAxis)
	return err
}

// String says what the axis splits.
func (e *expertParallel) String() string {
	num, most := 0, 0
	for _, l := range e.layers {
		sum := 0
		for _, n := range l.owned {
			sum += n
			most = max(most, n)
		}
		num = max(num, sum)
	}
	return fmt.Sprintf("%d experts, up to %d a rank, in %d layers", num, most, len(e.layers))
}

// InterceptParam gives a rank's experts their type: each rank of the axis has others.
func (e *expertParallel) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(*nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	t := next(c)
	if pass := sharding.Of(c.Tape()); pass != nil && e.params[p] {
		pass.Give(t, sharding.Boundary{Type: e.varying(pass, t)})
	}
	return t
}

// varying is the type of a value that has its own value on each rank of the axis.
func (e *expertParallel) varying(pass *sharding.Pass, like *tensor.Tensor) sharding.Type {
	at := pass.TypeOf(like)
	for i, a := range pass.Axes() {
		if a.Name == expertAxis {
			at[i] = mesh.Varying()
		}
	}
	return at
}

// InterceptCall sends the rows of experts to their ranks and back.
func (e *expertParallel) InterceptCall(c *nn.Ctx, module any, in []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	experts, ok := module.(*nn.Experts)
	layer := e.of[experts]
	if !ok || layer == nil || c.IsShapesOnly() || len(in) != 3 {
		return next(c, in)
	}
	x, weights, chosen := in[0], in[1], in[2]
	places, counts := tensor.GroupRows(chosen, sum(layer.owned))
	route := e.route(c, layer, chosen, counts)
	rows := tensor.SpreadRows(x, places, sum(route.sends))
	rows = e.exchange(c, layer, "rows", rows, route.sends, route.recvs)
	y := next(c, []*tensor.Tensor{rows, nil, route.experts})[0]
	y = e.exchange(c, layer, "results", y, route.recvs, route.sends)
	return []*tensor.Tensor{tensor.CombineRows(y, places, weights)}
}

// route is where the rows of a call go and come from.
type route struct {
	sends, recvs []int          // rows to and from each rank of the axis
	experts      *tensor.Tensor // of the rows that come, counted from this rank's first: int64 [rows, 1]
}

// route exchanges how many rows each rank has for each expert.
func (e *expertParallel) route(c *nn.Ctx, l *expertLayer, chosen, counts *tensor.Tensor) route {
	if chosen.Device() == tensor.Meta {
		return e.evenRoute(l, chosen.NumElems())
	}
	size, mine := len(l.owned), l.owned[e.group.Rank()]
	of := tensor.New(chosen.Device(), tensor.Int64, size*mine) // for this rank's experts, by the rank that has the rows
	if err := e.group.AllToAllSingle(c, of, counts.Detach(), slices.Repeat([]int{mine}, size), l.owned); err != nil {
		c.Fail(fmt.Errorf("exchange the numbers of rows of %s: %w", l.path, err))
	}
	return routeOf(c.Device(), counts.Int64s(), of.Int64s(), l.owned, e.group.Rank())
}

// routeOf makes a route of the counts of this rank's rows by expert, and of the counts of the
// rows that come by rank and expert.
func routeOf(dev tensor.Device, counts, of []int64, owned []int, rank int) route {
	r := route{sends: make([]int, len(owned)), recvs: make([]int, len(owned))}
	for to, n := range owned {
		for range n {
			r.sends[to] += int(counts[0])
			counts = counts[1:]
		}
	}
	var experts []int64
	for from := range owned {
		for k := range owned[rank] {
			n := of[from*owned[rank]+k]
			r.recvs[from] += int(n)
			experts = append(experts, slices.Repeat([]int64{int64(k)}, int(n))...)
		}
	}
	r.experts = tensor.On(dev).FromInt64(experts, len(experts), 1)
	return r
}

// evenRoute is that of rows that all experts have equally many of: where nothing has values.
func (e *expertParallel) evenRoute(l *expertLayer, rows int) route {
	r := route{sends: make([]int, len(l.owned)), recvs: make([]int, len(l.owned))}
	all, before := sum(l.owned), 0
	for to, n := range l.owned {
		r.sends[to] = rows*(before+n)/all - rows*before/all
		before += n
	}
	mine := 0
	for i := range r.recvs {
		r.recvs[i] = r.sends[e.group.Rank()]
		mine += r.recvs[i]
	}
	r.experts = tensor.New(tensor.Meta, tensor.Int64, mine, 1)
	return r
}

// exchange sends rows to the ranks of the axis and returns those that come. The gradient of what
// came goes back to where it was.
func (e *expertParallel) exchange(c *nn.Ctx, l *expertLayer, what string, rows *tensor.Tensor, sends, recvs []int) *tensor.Tensor {
	rows = rows.Contiguous()
	tape := c.Tape()
	move := func(ctx context.Context, x *tensor.Tensor, what string, sends, recvs []int) (*tensor.Tensor, error) {
		x = x.Detach().Contiguous()
		out := tape.Adopt(tensor.New(x.Device(), x.DType(), sum(recvs), x.Dim(1)))
		if x.Device() == tensor.Meta {
			return out, nil
		}
		if err := e.group.AllToAllSingle(ctx, out, x, recvs, sends); err != nil {
			return nil, fmt.Errorf("exchange the %s of %s: %w", what, l.path, err)
		}
		return out, nil
	}
	out, err := move(c, rows, what, sends, recvs)
	if err != nil {
		c.Fail(err)
	}
	if pass := sharding.Of(c.Tape()); pass != nil {
		pass.Give(out, sharding.Boundary{Type: e.varying(pass, rows)})
	}
	return tensor.Record("exchange of rows", out, []*tensor.Tensor{rows}, nil, func(ctx context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		dx, err := move(ctx, g, "gradients of "+what, recvs, sends)
		return []*tensor.Tensor{dx}, err
	})
}

// exchangeCalls returns the all-to-alls by which a rank takes part in one call of experts, and with
// backward in its gradients: counts, then rows there and back. counts[r][k] is how many rows rank
// r of the axis has for expert k, and owned how many experts each rank has.
func exchangeCalls(counts [][]int64, owned []int, rank, width int, dtype tensor.DType, backward bool) []operation.Call {
	call := func(dtype tensor.DType, width int, sends, recvs []int) operation.Call {
		c := operation.Call{Op: operation.AllToAll, DType: operation.DType(dtype)}
		times := func(rows []int) []int {
			elems := make([]int, len(rows))
			for i, n := range rows {
				elems[i] = n * width
			}
			return elems
		}
		c.SetExchange(times(sends), times(recvs))
		return c
	}
	sends, recvs := make([]int, len(owned)), make([]int, len(owned))
	first := 0
	for r, n := range owned {
		for k := first; k < first+n; k++ {
			sends[r] += int(counts[rank][k])
			if r == rank {
				for from := range owned {
					recvs[from] += int(counts[from][k])
				}
			}
		}
		first += n
	}
	calls := []operation.Call{call(tensor.Int64, 1, owned, slices.Repeat([]int{owned[rank]}, len(owned)))}
	there, back := call(dtype, width, sends, recvs), call(dtype, width, recvs, sends)
	if calls = append(calls, there, back); backward {
		calls = append(calls, there, back) // the gradients of results, and of rows
	}
	return calls
}

// sum adds up numbers of rows or experts.
func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}
