// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

func number(v float64) *tensor.Tensor {
	return fill(tensor.New(tensor.CPU(), tensor.Int64, 1), func(int) float64 { return v })
}

// TestReceivesKeepTheirOrder issues receives from a peer and from any rank
// without waiting: each takes the message of its place.
func TestReceivesKeepTheirOrder(t *testing.T) {
	onEveryTransport(t, []int{2}, func(ctx context.Context, g *Group) error {
		const n = 30
		if g.Rank() == 1 {
			for i := range n {
				if err := g.Send(ctx, number(float64(i)), 0); err != nil {
					return err
				}
			}
			return nil
		}
		var works []*Work
		var got []*tensor.Tensor
		for i := range n {
			x := number(-1)
			got = append(got, x)
			switch {
			case i == n/2: // in the middle of the line, and waiting itself
				src, err := g.RecvAny(ctx, x)
				if err != nil || src != 1 {
					return fmt.Errorf("a message from rank %d: %w", src, err)
				}
			case i%4 == 3:
				works = append(works, g.RecvAnyAsync(ctx, x))
			default:
				works = append(works, g.RecvAsync(ctx, x, 1))
			}
		}
		for _, w := range works {
			if err := w.Wait(ctx); err != nil {
				return err
			}
			if w.Source() != 1 {
				return fmt.Errorf("the source is %d", w.Source())
			}
		}
		for i, x := range got {
			if err := check("a message", x, func(int) int64 { return int64(i) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestReceiveFromAnyWaitsForTheOnesBefore: a receive from any rank does not
// take a message while an earlier receive has not got its own.
func TestReceiveFromAnyWaitsForTheOnesBefore(t *testing.T) {
	onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
		if g.Rank() == 2 { // sends when rank 0 says so
			if err := g.Recv(ctx, number(0), 0); err != nil {
				return err
			}
		}
		if g.Rank() != 0 {
			return g.Send(ctx, number(float64(g.Rank())), 0)
		}
		x, y, z := number(0), number(0), number(0)
		first := g.RecvAsync(ctx, x, 2)
		second := g.RecvAnyAsync(ctx, y)
		third := g.RecvAsync(ctx, z, 1)
		if second.Source() != -1 {
			return errors.New("a receive has a source before it has ended")
		}
		select {
		case <-second.Done():
			return errors.New("a receive from any rank did not wait")
		default:
		}
		if err := g.Send(ctx, number(0), 2); err != nil {
			return err
		}
		if err := errors.Join(first.Wait(ctx), second.Wait(ctx)); err != nil {
			return err
		}
		if err := check("from 2", x, func(int) int64 { return 2 }); err != nil || second.Source() != 1 {
			return fmt.Errorf("the second message is from rank %d: %w", second.Source(), err)
		}
		// The last one waits in vain, until somebody leaves.
		if err := g.Close(); err != nil {
			return err
		}
		if err := third.Wait(ctx); err == nil {
			return errors.New("a third message came from nowhere")
		}
		return nil
	})
}

// TestBatchThatWouldDeadlock exchanges more than links hold, all ranks at once.
func TestBatchThatWouldDeadlock(t *testing.T) {
	t.Parallel()
	onEveryTransport(t, []int{3}, func(ctx context.Context, g *Group) error {
		const n = 1 << 20
		next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
		x, y := filled(tensor.Float32, n, g.Rank()), private(tensor.Float32, n)
		if err := g.Batch(ctx, Message{Tensor: x, Peer: next}, Message{Recv: true, Tensor: y, Peer: prev}); err != nil {
			return err
		}
		if err := check("recv", y, func(i int) int64 { return value(prev, i) }); err != nil {
			return err
		}
		return g.Batch(ctx) // of nothing
	})
}
