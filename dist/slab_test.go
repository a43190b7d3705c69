// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/internal/mem"
)

// slabbed returns data at an offset of a slab of its own.
func slabbed(d collective.DType, n int) (collective.Data, error) {
	offset := 4 * d.Size()
	slab, err := mem.NewSlab(offset + n*d.Size() + 64)
	if err != nil {
		return collective.Data{}, err
	}
	return collective.Data{Buffer: mem.Buffer{Data: slab.Bytes()[offset:][:n*d.Size()], Slab: slab, Offset: offset}, DType: d, NumElems: n}, nil
}

// slabsAgainstOracle runs collectives and messages on data in slabs, on all
// ranks or on some only.
func slabsAgainstOracle(ctx context.Context, g *Group) error {
	const n = 70_003
	for _, dt := range dtypes {
		x, err := slabbed(dt, n)
		if err != nil {
			return err
		}
		all, err := slabbed(dt, n*g.Size())
		if err != nil {
			return err
		}
		fill := func(d collective.Data) {
			for i := range n {
				set(d, i, value(g.Rank(), i))
			}
		}
		for round := range 3 {
			in, out := x, all
			switch {
			case round == 1 && g.Rank() == 0:
				in = private(dt, n)
			case round == 2:
				in = private(dt, n)
			}
			fill(in)
			if err := g.run(g.allReduce(ctx, in, Sum)); err != nil {
				return err
			}
			if err := check("all_reduce", in, func(i int) int64 { return reduced(Sum, g.Size(), i) }); err != nil {
				return err
			}
			fill(in)
			if err := g.run(g.allGather(ctx, out, in)); err != nil {
				return err
			}
			if err := check("all_gather", out, func(i int) int64 { return value(i/n, i%n) }); err != nil {
				return err
			}
			for root := range g.Size() {
				fill(in)
				if err := g.run(g.broadcast(ctx, in, root)); err != nil {
					return err
				}
				if err := check("broadcast", in, func(i int) int64 { return value(root, i) }); err != nil {
					return err
				}
			}
			if g.Size() == 1 {
				continue
			}
			fill(in)
			next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
			got := out
			got.NumElems = n
			w := g.runAsync(g.send(ctx, in, next))
			if err := g.run(g.recv(ctx, got, prev)); err != nil {
				return err
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if err := check("recv", got, func(i int) int64 { return value(prev, i) }); err != nil {
				return err
			}
		}
		if err := g.Barrier(ctx); err != nil { // nobody reads the slabs any more
			return err
		}
		if err := x.Buffer.Slab.Close(); err != nil {
			return err
		}
		if err := all.Buffer.Slab.Close(); err != nil {
			return err
		}
	}
	return nil
}

func TestSlabs(t *testing.T) {
	onEveryTransport(t, []int{1, 2, 3, 5}, slabsAgainstOracle)
}
