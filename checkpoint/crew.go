// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

// crew is the ranks that save or load together.
type crew struct {
	group      *dist.Group // nil for one rank
	rank, size int
	number     map[int]int // of a rank of the world in the group; nil if they are the same
}

func crewOf(g *dist.Group) crew {
	if g == nil {
		return crew{size: 1}
	}
	c := crew{group: g, rank: g.Rank(), size: g.Size()}
	for i, rank := range g.Ranks() {
		if i != rank && c.number == nil {
			c.number = make(map[int]int)
		}
	}
	if c.number != nil {
		for i, rank := range g.Ranks() {
			c.number[rank] = i
		}
	}
	return c
}

// numberOf returns the number in the group of a rank of the world.
func (c crew) numberOf(rank int) (int, bool) {
	if c.number == nil {
		return rank, rank < c.size
	}
	i, ok := c.number[rank]
	return i, ok
}

const (
	// crewPatience is how long a rank waits for others after the end of its context: long enough
	// to tell each other, but a rank that hangs does not hold it for ever.
	crewPatience = time.Minute
	// storagePatience is how long it waits for its own storage then: it can still tell the others.
	storagePatience = crewPatience / 2
)

// outlast returns a context that ends some time after the end of ctx.
func outlast(ctx context.Context, patience time.Duration) (context.Context, func()) {
	out, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var mu sync.Mutex
	var timer *time.Timer
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(patience, func() { end(fmt.Errorf("%w, and %v have passed since", context.Cause(ctx), patience)) })
	})
	return out, func() {
		if !stop() {
			mu.Lock()
			defer mu.Unlock()
			if timer != nil {
				timer.Stop()
			}
		}
		end(nil)
	}
}

// allGather returns the value of every rank, by rank. It waits for them for some time after the end
// of ctx.
func allGather[T any](ctx context.Context, c crew, v T) ([]T, error) {
	if c.group == nil {
		return []T{v}, nil
	}
	ctx, end := outlast(ctx, crewPatience)
	defer end()
	return dist.AllGatherObject(ctx, c.group, v)
}

// broadcast returns rank 0's value on every rank. It waits as allGather does.
func broadcast[T any](ctx context.Context, c crew, v T) (T, error) {
	if c.group == nil {
		return v, nil
	}
	ctx, end := outlast(ctx, crewPatience)
	defer end()
	return dist.BroadcastObject(ctx, c.group, v, 0)
}

// stuckError says that the storage of a rank did not answer.
type stuckError struct {
	rank int
	err  error // why it waits no longer
}

func (e *stuckError) Error() string {
	return fmt.Sprintf("the storage of rank %d hangs: it has not answered (%v): look at its disk or mount", e.rank, e.err)
}

func (e *stuckError) Unwrap() error { return e.err }

// unstuck does what asks the storage of this rank, and leaves it behind if the storage hangs after
// the end of ctx. What do returns does not count then.
func unstuck[T any](ctx context.Context, c crew, do func() (T, error)) (T, error) {
	type outcome struct {
		v     T
		err   error
		panic any
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			o.panic = recover()
			done <- o
		}()
		o.v, o.err = do()
	}()
	limit, end := outlast(ctx, storagePatience)
	defer end()
	select {
	case o := <-done:
		if o.panic != nil {
			panic(o.panic)
		}
		return o.v, o.err
	case <-limit.Done():
		var none T
		return none, &stuckError{c.rank, context.Cause(limit)}
	}
}

// agree makes an error of any rank an error of all. A rank's own error stays as it is; the
// others get one that names the rank.
func (c crew) agree(ctx context.Context, err error) error {
	if c.group == nil {
		return err
	}
	reports, gathered := allGather(ctx, c, reportOf(err))
	if err != nil {
		return err
	}
	if gathered != nil {
		return gathered
	}
	return firstOf(reports)
}

// firstOf returns the error of the first rank that has one.
func firstOf(reports []rankReport) error {
	for rank, r := range reports {
		if err := r.of(rank); err != nil {
			return err
		}
	}
	return nil
}

// isAway says whether rank r of the crew has nothing of part i of all parts.
type isAway func(r, i int) bool

// exchangeAway finds out which ranks lack which parts. It is nil if no rank lacks any.
func (c crew) exchangeAway(ctx context.Context, parts []Part) (isAway, error) {
	bits := make([]byte, (len(parts)+7)/8)
	for i, p := range parts {
		if p.Away {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	all, err := allGather(ctx, c, bits)
	if err != nil {
		return nil, err
	}
	for r, b := range all {
		if len(b) != len(bits) {
			return nil, fmt.Errorf("rank %d says of %d bytes of tensors what it lacks, want %d", r, len(b), len(bits))
		}
	}
	return func(r, i int) bool { return all[r][i/8]>>(i%8)&1 != 0 }, nil
}

// holders returns the ranks of the crew that hold the same boxes of part i as this rank, in
// their order, this one among them.
func (c crew) holders(p Part, i int, away isAway) ([]int, error) {
	var list []int
	add := func(r int) {
		if away == nil || !away(r, i) {
			list = append(list, r)
		}
	}
	if p.Mesh == nil {
		for r := range c.size {
			add(r)
		}
		return list, nil
	}
	// The axes that cut the tensor are fixed at this rank's place, the others run.
	shape, at, ranks := p.Mesh.Shape(), p.Mesh.Coordinate(), p.Mesh.Ranks()
	if at == nil {
		return nil, errors.New("lies on a mesh that this rank is not in: leave the tensor out here")
	}
	numbers := []int{0}
	for axis, n := range shape {
		var wider []int
		for _, number := range numbers {
			for k := range n {
				if p.Placements[axis].IsReplicate() || k == at[axis] {
					wider = append(wider, number*n+k)
				}
			}
		}
		numbers = wider
	}
	for _, number := range numbers {
		r, ok := c.numberOf(ranks[number])
		if !ok {
			return nil, fmt.Errorf("lies on a mesh with rank %d, which is not in the group that saves: save with the group of all ranks", ranks[number])
		}
		add(r)
	}
	slices.Sort(list)
	return list, nil
}
