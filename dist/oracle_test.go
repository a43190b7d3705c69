// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// one is a single run of an operation, by which all ranks know what each of
// them has and what must come out.
type one struct {
	op     operationCase
	dtype  tensor.DType
	reduce ReduceOp // of the operations that reduce
	layout string
	count  int    // elements of a tensor
	parts  string // how parts differ, of the operations where they may
	async  bool
	// started is called when an asynchronous run has begun; nil for nothing.
	started func()
}

func (c one) String() string {
	text := fmt.Sprintf("%s of %d %v, %s", c.op.name, c.count, c.dtype, c.layout)
	if c.op.reduces {
		text += ", " + c.reduce.String()
	}
	if c.op.uneven {
		text += ", parts " + c.parts
	}
	if c.async {
		text += ", asynchronous"
	}
	return text
}

var reductions = []ReduceOp{Sum, Product, Min, Max, Avg, BAnd, BOr, BXor, PremulSum(1)}

// numElems are chosen around the borders between algorithms: beside the call,
// one round of slots, several, more than there are slots.
var numElems = []int{0, 1, 3, 64, 1000, 4097, 70_001, 300_003}

var partings = []string{"even", "uneven", "some empty"}

// part is how many elements the part of a rank has.
func (c one) part(rank int) int {
	switch c.parts {
	case "uneven":
		return c.count/2 + (rank*5+1)%7*(c.count/7+1)
	case "some empty":
		return rank % 2 * c.count
	}
	return c.count
}

// parcel is how many elements a rank sends another in an all-to-all.
func (c one) parcel(from, to int) int {
	if c.parts == "even" {
		return c.count
	}
	return c.part(from+2*to) / 2
}

// has is what a rank has as element i: small integers, so that every type has
// them and every result exactly, in whatever order it is computed.
func (c one) has(rank, i, numRanks int) float64 {
	v := (i*7 + rank*31 + i/1000) % 100
	signed := c.dtype != tensor.Uint8 && c.dtype != tensor.Bool
	if c.op.reduces {
		switch c.reduce.Kind() {
		case Sum:
			v %= 7
			if signed {
				v -= 3
			}
		case Product:
			switch v %= 4; {
			case v == 0 && rank < 5:
				v = 2
			case v == 1 && signed:
				v = -1
			default:
				v = 1
			}
		case Avg: // the sum is a multiple of the number of ranks
			v = (v % 2) * numRanks
			if rank > 3 {
				v = 0
			} else if signed && i%3 == 0 {
				v = -v
			}
		case PremulSum(1).Kind():
			v = v%3*4 - 4
		default:
			v %= 64
			if signed {
				v -= 32
			}
		}
	}
	if c.dtype == tensor.Bool {
		v = (v%2 + 2) % 2
	}
	return float64(v)
}

// reduction is the reduction that a rank asks for: factors are each rank's own.
func (c one) reduction(rank int) ReduceOp {
	if c.reduce.Kind() == PremulSum(1).Kind() {
		return PremulSum([]float32{0.5, 2}[rank%2])
	}
	return c.reduce
}

// reduced is the oracle of reductions: one element after the other, in float64.
func (c one) reduced(numRanks, i int) float64 {
	acc, kind := 0.0, c.reduce.Kind()
	for r := range numRanks {
		v := c.has(r, i, numRanks) * float64(c.reduction(r).Factor())
		switch {
		case r == 0:
			acc = v
		case c.dtype == tensor.Bool && (kind == Sum || kind == Max):
			acc = math.Max(acc, v)
		case c.dtype == tensor.Bool && (kind == Product || kind == Min):
			acc *= v
		case kind == Product:
			acc *= v
		case kind == Min:
			acc = math.Min(acc, v)
		case kind == Max:
			acc = math.Max(acc, v)
		case kind == BAnd:
			acc = float64(int64(acc) & int64(v))
		case kind == BOr:
			acc = float64(int64(acc) | int64(v))
		case kind == BXor:
			acc = float64(int64(acc) ^ int64(v))
		default:
			acc += v
		}
	}
	if kind == Avg {
		acc /= float64(numRanks)
	}
	return acc
}

// tolerance is how far a reduction may be off: an average may be computed with
// a rounded factor.
func (c one) tolerance() float64 {
	if c.reduce.Kind() != Avg {
		return 0
	}
	switch c.dtype {
	case tensor.BFloat16:
		return 0x1p-8
	case tensor.Float16:
		return 0x1p-10
	}
	return 0x1p-23
}

// refused reports whether the elements are of a type that is not reduced so.
func (c one) refused(g *Group) bool {
	return c.op.reduces && g.reducible(c.reduce, dtypeOf[c.dtype]) != nil
}

// run runs the operation on this rank and compares what comes out.
func (c one) run(ctx context.Context, g *Group) error {
	if err := c.op.run(ctx, g, c); err != nil {
		return fmt.Errorf("%v: rank %d: %w", c, g.Rank(), err)
	}
	return nil
}

// wait ends one of the two forms of an operation, whichever the run is for,
// and sees refused what must be.
func (c one) wait(ctx context.Context, g *Group, plain func() error, async func() *Work) (done bool, err error) {
	if c.async {
		w := async()
		if c.started != nil {
			c.started()
		}
		err = w.Wait(ctx)
	} else {
		err = plain()
	}
	if !c.refused(g) {
		return err == nil, err
	}
	var refused *ReduceError
	if !errors.As(err, &refused) {
		return false, fmt.Errorf("got %v, want it refused", err)
	}
	return false, nil
}

// tensor returns a tensor of this rank with n of its elements, from the
// first-th on.
func (c one) tensor(g *Group, first, n int) *tensor.Tensor {
	return fill(laid(c.layout, c.dtype, n, g.Rank()), func(i int) float64 { return c.has(g.Rank(), first+i, g.Size()) })
}

// tensors returns tensors with the elements of this rank, one after the other.
func (c one) tensors(g *Group, sizes []int) []*tensor.Tensor {
	ts, first := make([]*tensor.Tensor, len(sizes)), 0
	for i, n := range sizes {
		ts[i] = c.tensor(g, first, n)
		first += n
	}
	return ts
}

// empty returns tensors to be filled.
func (c one) empty(g *Group, sizes []int) []*tensor.Tensor {
	ts := make([]*tensor.Tensor, len(sizes))
	for i, n := range sizes {
		ts[i] = laid(c.layout, c.dtype, n, g.Rank())
	}
	return ts
}

// compare compares tensors with the elements of one run of elements.
func (c one) compare(what string, ts []*tensor.Tensor, want func(i int) float64) error {
	first := 0
	for _, t := range ts {
		if err := differs(what, t, c.tolerance(), func(i int) float64 { return want(first + i) }); err != nil {
			return err
		}
		first += t.NumElems()
	}
	return nil
}

// own are the values of a rank.
func (c one) own(g *Group, rank int) func(i int) float64 {
	return func(i int) float64 { return c.has(rank, i, g.Size()) }
}

// after is a function of elements that begins with the first-th.
func after(first int, f func(i int) float64) func(i int) float64 {
	return func(i int) float64 { return f(first + i) }
}

func sum(ns []int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}

// each returns f of all ranks.
func each(g *Group, f func(rank int) int) []int {
	ns := make([]int, g.Size())
	for r := range ns {
		ns[r] = f(r)
	}
	return ns
}

// operation is an operation as it is tested.
type operationCase struct {
	name    string
	reduces bool
	uneven  bool // parts may differ in size
	run     func(ctx context.Context, g *Group, c one) error
}

var operations = []operationCase{
	{"barrier", false, false, func(ctx context.Context, g *Group, c one) error {
		_, err := c.wait(ctx, g, func() error { return g.Barrier(ctx) }, func() *Work { return g.BarrierAsync(ctx) })
		return err
	}},
	{"monitored_barrier", false, false, func(ctx context.Context, g *Group, c one) error { return g.MonitoredBarrier(ctx) }},
	{"all_reduce", true, false, func(ctx context.Context, g *Group, c one) error {
		x, op := c.tensor(g, 0, c.count), c.reduction(g.Rank())
		if ok, err := c.wait(ctx, g, func() error { return g.AllReduce(ctx, x, op) }, func() *Work { return g.AllReduceAsync(ctx, x, op) }); !ok {
			return err
		}
		return differs("the result", x, c.tolerance(), func(i int) float64 { return c.reduced(g.Size(), i) })
	}},
	{"all_reduce_coalesced", true, false, func(ctx context.Context, g *Group, c one) error {
		xs, op := c.tensors(g, []int{c.count, 5, c.count/2 + 1}), c.reduction(g.Rank())
		if ok, err := c.wait(ctx, g, func() error { return g.AllReduceCoalesced(ctx, xs, op) }, func() *Work { return g.AllReduceCoalescedAsync(ctx, xs, op) }); !ok {
			return err
		}
		return c.compare("the result", xs, func(i int) float64 { return c.reduced(g.Size(), i) })
	}},
	{"reduce", true, false, func(ctx context.Context, g *Group, c one) error {
		x, op, root := c.tensor(g, 0, c.count), c.reduction(g.Rank()), (c.count+1)%g.Size()
		if ok, err := c.wait(ctx, g, func() error { return g.Reduce(ctx, x, root, op) }, func() *Work { return g.ReduceAsync(ctx, x, root, op) }); !ok {
			return err
		}
		if g.Rank() != root {
			return differs("what is not the root's", x, 0, c.own(g, g.Rank()))
		}
		return differs("the result", x, c.tolerance(), func(i int) float64 { return c.reduced(g.Size(), i) })
	}},
	{"reduce_scatter", true, false, func(ctx context.Context, g *Group, c one) error {
		src, dst, op := c.tensor(g, 0, c.count*g.Size()), laid(c.layout, c.dtype, c.count, g.Rank()), c.reduction(g.Rank())
		if ok, err := c.wait(ctx, g, func() error { return g.ReduceScatter(ctx, dst, src, op) }, func() *Work { return g.ReduceScatterAsync(ctx, dst, src, op) }); !ok {
			return err
		}
		return errors.Join(differs("the source", src, 0, c.own(g, g.Rank())),
			differs("the result", dst, c.tolerance(), func(i int) float64 { return c.reduced(g.Size(), g.Rank()*c.count+i) }))
	}},
	{"reduce_scatter_list", true, true, func(ctx context.Context, g *Group, c one) error {
		sizes, op := each(g, c.part), c.reduction(g.Rank())
		srcs, dst := c.tensors(g, sizes), laid(c.layout, c.dtype, c.part(g.Rank()), g.Rank())
		if ok, err := c.wait(ctx, g, func() error { return g.ReduceScatterList(ctx, dst, srcs, op) }, func() *Work { return g.ReduceScatterListAsync(ctx, dst, srcs, op) }); !ok {
			return err
		}
		first := sum(sizes[:g.Rank()])
		return errors.Join(c.compare("the source", srcs, c.own(g, g.Rank())),
			differs("the result", dst, c.tolerance(), func(i int) float64 { return c.reduced(g.Size(), first+i) }))
	}},
	{"reduce_scatter_coalesced", true, false, func(ctx context.Context, g *Group, c one) error {
		sizes, op := []int{c.count, 3, c.count / 3}, c.reduction(g.Rank())
		large := []int{sizes[0] * g.Size(), sizes[1] * g.Size(), sizes[2] * g.Size()}
		srcs, dsts := c.tensors(g, large), c.empty(g, sizes)
		if ok, err := c.wait(ctx, g, func() error { return g.ReduceScatterCoalesced(ctx, dsts, srcs, op) }, func() *Work { return g.ReduceScatterCoalescedAsync(ctx, dsts, srcs, op) }); !ok {
			return err
		}
		errs := []error{c.compare("the source", srcs, c.own(g, g.Rank()))}
		for j, dst := range dsts {
			first := sum(large[:j]) + g.Rank()*sizes[j]
			errs = append(errs, differs("a result", dst, c.tolerance(), func(i int) float64 { return c.reduced(g.Size(), first+i) }))
		}
		return errors.Join(errs...)
	}},
	{"broadcast", false, false, func(ctx context.Context, g *Group, c one) error {
		x, root := c.tensor(g, 0, c.count), (c.count+1)%g.Size()
		if ok, err := c.wait(ctx, g, func() error { return g.Broadcast(ctx, x, root) }, func() *Work { return g.BroadcastAsync(ctx, x, root) }); !ok {
			return err
		}
		return differs("the result", x, 0, c.own(g, root))
	}},
	{"broadcast_coalesced", false, false, func(ctx context.Context, g *Group, c one) error {
		xs, root := c.tensors(g, []int{c.count, 0, 7, c.count / 2}), (c.count+1)%g.Size()
		if ok, err := c.wait(ctx, g, func() error { return g.BroadcastCoalesced(ctx, xs, root) }, func() *Work { return g.BroadcastCoalescedAsync(ctx, xs, root) }); !ok {
			return err
		}
		return c.compare("the result", xs, c.own(g, root))
	}},
	{"all_gather", false, false, func(ctx context.Context, g *Group, c one) error {
		src, dst := c.tensor(g, 0, c.count), laid(c.layout, c.dtype, c.count*g.Size(), g.Rank())
		if ok, err := c.wait(ctx, g, func() error { return g.AllGather(ctx, dst, src) }, func() *Work { return g.AllGatherAsync(ctx, dst, src) }); !ok {
			return err
		}
		return errors.Join(differs("the source", src, 0, c.own(g, g.Rank())),
			differs("the result", dst, 0, func(i int) float64 { return c.has(i/c.count, i%c.count, g.Size()) }))
	}},
	{"all_gather_list", false, true, func(ctx context.Context, g *Group, c one) error {
		src, dsts := c.tensor(g, 0, c.part(g.Rank())), c.empty(g, each(g, c.part))
		if ok, err := c.wait(ctx, g, func() error { return g.AllGatherList(ctx, dsts, src) }, func() *Work { return g.AllGatherListAsync(ctx, dsts, src) }); !ok {
			return err
		}
		return c.fromEach(g, dsts, src)
	}},
	{"all_gather_coalesced", false, false, func(ctx context.Context, g *Group, c one) error {
		sizes := []int{c.count, c.count/3 + 1, 2}
		srcs, dsts := c.tensors(g, sizes), c.empty(g, []int{sizes[0] * g.Size(), sizes[1] * g.Size(), sizes[2] * g.Size()})
		if ok, err := c.wait(ctx, g, func() error { return g.AllGatherCoalesced(ctx, dsts, srcs) }, func() *Work { return g.AllGatherCoalescedAsync(ctx, dsts, srcs) }); !ok {
			return err
		}
		for j, dst := range dsts {
			first := sum(sizes[:j])
			if err := differs("a result", dst, 0, func(i int) float64 { return c.has(i/sizes[j], first+i%sizes[j], g.Size()) }); err != nil {
				return err
			}
		}
		return c.compare("the sources", srcs, c.own(g, g.Rank()))
	}},
	{"gather", false, true, func(ctx context.Context, g *Group, c one) error {
		src, root := c.tensor(g, 0, c.part(g.Rank())), (c.count+1)%g.Size()
		var dsts []*tensor.Tensor
		if g.Rank() == root {
			dsts = c.empty(g, each(g, c.part))
		}
		if ok, err := c.wait(ctx, g, func() error { return g.Gather(ctx, dsts, src, root) }, func() *Work { return g.GatherAsync(ctx, dsts, src, root) }); !ok {
			return err
		}
		return c.fromEach(g, dsts, src)
	}},
	{"scatter", false, true, func(ctx context.Context, g *Group, c one) error {
		sizes, root := each(g, c.part), (c.count+1)%g.Size()
		dst := laid(c.layout, c.dtype, c.part(g.Rank()), g.Rank())
		var srcs []*tensor.Tensor
		if g.Rank() == root {
			srcs = c.tensors(g, sizes)
		}
		if ok, err := c.wait(ctx, g, func() error { return g.Scatter(ctx, dst, srcs, root) }, func() *Work { return g.ScatterAsync(ctx, dst, srcs, root) }); !ok {
			return err
		}
		return errors.Join(c.compare("the sources", srcs, c.own(g, root)),
			differs("the result", dst, 0, after(sum(sizes[:g.Rank()]), c.own(g, root))))
	}},
	{"all_to_all", false, true, func(ctx context.Context, g *Group, c one) error {
		sends := each(g, func(r int) int { return c.parcel(g.Rank(), r) })
		recvs := each(g, func(r int) int { return c.parcel(r, g.Rank()) })
		srcs, dsts := c.tensors(g, sends), c.empty(g, recvs)
		if ok, err := c.wait(ctx, g, func() error { return g.AllToAll(ctx, dsts, srcs) }, func() *Work { return g.AllToAllAsync(ctx, dsts, srcs) }); !ok {
			return err
		}
		for r, dst := range dsts {
			if err := differs(fmt.Sprintf("what comes from rank %d", r), dst, 0, after(c.parcelsBefore(g, r), c.own(g, r))); err != nil {
				return err
			}
		}
		return c.compare("the sources", srcs, c.own(g, g.Rank()))
	}},
	{"all_to_all_single", false, true, func(ctx context.Context, g *Group, c one) error {
		sends := each(g, func(r int) int { return c.parcel(g.Rank(), r) })
		recvs := each(g, func(r int) int { return c.parcel(r, g.Rank()) })
		src, dst := rows(c.tensor(g, 0, 2*sum(sends))), rows(laid(c.layout, c.dtype, 2*sum(recvs), g.Rank()))
		if c.parts == "even" {
			sends, recvs = nil, nil
		}
		if ok, err := c.wait(ctx, g, func() error { return g.AllToAllSingle(ctx, dst, src, recvs, sends) }, func() *Work { return g.AllToAllSingleAsync(ctx, dst, src, recvs, sends) }); !ok {
			return err
		}
		for r, first := 0, 0; r < g.Size(); r++ {
			n := c.parcel(r, g.Rank())
			if err := differs(fmt.Sprintf("what comes from rank %d", r), dst.Narrow(0, first, n), 0, after(2*c.parcelsBefore(g, r), c.own(g, r))); err != nil {
				return err
			}
			first += n
		}
		return differs("the source", src, 0, c.own(g, g.Rank()))
	}},
	{"send", false, false, func(ctx context.Context, g *Group, c one) error {
		if g.Size() == 1 {
			return nil
		}
		next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
		x, y := c.tensor(g, 0, c.count), laid(c.layout, c.dtype, c.count, g.Rank())
		if c.async {
			came := g.RecvAsync(ctx, y, prev)
			if err := g.Send(ctx, x, next); err != nil {
				return err
			}
			if err := came.Wait(ctx); err != nil {
				return err
			}
			if came.Source() != prev {
				return fmt.Errorf("the source is %d, want %d", came.Source(), prev)
			}
		} else {
			sent := g.SendAsync(ctx, x, next)
			if err := g.Recv(ctx, y, prev); err != nil {
				return err
			}
			if err := sent.Wait(ctx); err != nil {
				return err
			}
		}
		return differs("what comes", y, 0, c.own(g, prev))
	}},
	{"recv_any", false, false, func(ctx context.Context, g *Group, c one) error {
		if g.Rank() != 0 {
			if err := g.Send(ctx, c.tensor(g, 0, c.count), 0); err != nil {
				return err
			}
			return g.Barrier(ctx)
		}
		came := make([]bool, g.Size())
		for range g.Size() - 1 {
			x := laid(c.layout, c.dtype, c.count, 0)
			var src int
			var err error
			if c.async {
				w := g.RecvAnyAsync(ctx, x)
				err = w.Wait(ctx)
				src = w.Source()
			} else {
				src, err = g.RecvAny(ctx, x)
			}
			if err != nil {
				return err
			}
			if src <= 0 || src >= g.Size() || came[src] {
				return fmt.Errorf("a message from rank %d, again or at all", src)
			}
			came[src] = true
			if err := differs("what comes", x, 0, c.own(g, src)); err != nil {
				return err
			}
		}
		return g.Barrier(ctx) // messages that follow are not for the receives above
	}},
	{"batch", false, false, func(ctx context.Context, g *Group, c one) error {
		var ms []Message
		var got []*tensor.Tensor
		for r := range g.Size() {
			if r != g.Rank() {
				got = append(got, laid(c.layout, c.dtype, c.count, g.Rank()))
				ms = append(ms, Message{Tensor: c.tensor(g, r, c.count), Peer: r}, Message{Recv: true, Tensor: got[len(got)-1], Peer: r})
			}
		}
		if ok, err := c.wait(ctx, g, func() error { return g.Batch(ctx, ms...) }, func() *Work { return g.BatchAsync(ctx, ms...) }); !ok {
			return err
		}
		for r := range g.Size() {
			if r != g.Rank() {
				if err := differs("what comes", got[0], 0, after(g.Rank(), c.own(g, r))); err != nil {
					return err
				}
				got = got[1:]
			}
		}
		return nil
	}},
	{"objects", false, false, objects},
}

// fromEach compares the tensors of a gather, none where there are none.
func (c one) fromEach(g *Group, dsts []*tensor.Tensor, src *tensor.Tensor) error {
	for r, dst := range dsts {
		if err := differs(fmt.Sprintf("what comes from rank %d", r), dst, 0, c.own(g, r)); err != nil {
			return err
		}
	}
	return differs("the source", src, 0, c.own(g, g.Rank()))
}

// parcelsBefore is how many elements a rank sends to the ranks before this one.
func (c one) parcelsBefore(g *Group, from int) (n int) {
	for to := range g.Rank() {
		n += c.parcel(from, to)
	}
	return n
}

// rows makes a tensor one of rows of two elements, with the same strides where
// that is possible.
func rows(t *tensor.Tensor) *tensor.Tensor { return t.Reshape(-1, 2) }

func objects(ctx context.Context, g *Group, c one) error {
	type object struct {
		Name  string
		Ranks []int
	}
	object0 := func(rank int) object {
		return object{fmt.Sprint("rank ", rank), make([]int, min(rank*c.count, 1000))}
	}
	same := func(what string, got object, rank int) error {
		if want := object0(rank); got.Name != want.Name || !slices.Equal(got.Ranks, want.Ranks) {
			return fmt.Errorf("%s: got %v of rank %d", what, got, rank)
		}
		return nil
	}
	root := (c.count + 1) % g.Size()
	all, err := AllGatherObject(ctx, g, object0(g.Rank()))
	if err != nil {
		return err
	}
	for r := range all {
		if err := same("all_gather", all[r], r); err != nil {
			return err
		}
	}
	gathered, err := GatherObject(ctx, g, object0(g.Rank()), root)
	if err != nil {
		return err
	}
	if want := len(all); g.Rank() == root && len(gathered) != want || g.Rank() != root && gathered != nil {
		return fmt.Errorf("gather gave %d values", len(gathered))
	}
	for r := range gathered {
		if err := same("gather", gathered[r], r); err != nil {
			return err
		}
	}
	got, err := BroadcastObject(ctx, g, object0(g.Rank()), root)
	if err != nil {
		return err
	}
	if err := same("broadcast", got, root); err != nil {
		return err
	}
	if g.Rank() == root {
		got, err = ScatterObject(ctx, g, all, root)
	} else {
		got, err = ScatterObject[object](ctx, g, nil, root)
	}
	if err != nil {
		return err
	}
	if err := same("scatter", got, g.Rank()); err != nil || g.Size() == 1 {
		return err
	}
	next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
	if err := SendObject(ctx, g, all[next], next); err != nil {
		return err
	}
	if got, err = RecvObject[object](ctx, g, prev); err != nil {
		return err
	}
	return same("recv", got, g.Rank())
}
