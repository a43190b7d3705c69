// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/tensor"
)

// TestEveryTypeIsMoved broadcasts, gathers and sends elements of every type, and
// sees a reduction refuse those that it has no meaning for.
func TestEveryTypeIsMoved(t *testing.T) {
	dtypes := []tensor.DType{tensor.Float32, tensor.Int64, tensor.BFloat16, tensor.Float16, tensor.Float64,
		tensor.Int32, tensor.Int8, tensor.Uint8, tensor.Bool}
	if len(dtypeOf) != len(dtypes)+1 {
		t.Fatalf("the table has %d types, the test %d", len(dtypeOf)-1, len(dtypes))
	}
	// pattern is what rank r has in byte i.
	pattern := func(r, i int) byte { return byte(1 + (i*7+r*31)%250) }
	made := func(dtype tensor.DType, n, rank int) *tensor.Tensor {
		x := tensor.New(tensor.CPU(), dtype, n)
		data := x.Buffer().Data
		for i := range data {
			data[i] = pattern(rank, i)
		}
		return x
	}
	onEveryTransport(t, []int{1, 2, 3}, func(ctx context.Context, g *Group) error {
		for _, dtype := range dtypes {
			for _, n := range []int{1, 5, 4099, 70_001} {
				what := func(op string) string { return fmt.Sprintf("%s of %d %v", op, n, dtype) }
				x, root := made(dtype, n, g.Rank()), g.Size()-1
				if err := g.Broadcast(ctx, x, root); err != nil {
					return err
				}
				if !bytes.Equal(x.Buffer().Data, made(dtype, n, root).Buffer().Data) {
					return errors.New(what("broadcast"))
				}
				all := tensor.New(tensor.CPU(), dtype, g.Size()*n)
				if err := g.AllGather(ctx, all, made(dtype, n, g.Rank())); err != nil {
					return err
				}
				size := n * dtype.Size()
				for r := range g.Size() {
					if !bytes.Equal(all.Buffer().Data[r*size:(r+1)*size], made(dtype, n, r).Buffer().Data) {
						return errors.New(what("all-gather"))
					}
				}
				if g.Size() > 1 {
					next, prev := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
					sent := g.SendAsync(ctx, made(dtype, n, g.Rank()), next)
					if err := g.Recv(ctx, x, prev); err != nil {
						return err
					}
					if err := sent.Wait(ctx); err != nil {
						return err
					}
					if !bytes.Equal(x.Buffer().Data, made(dtype, n, prev).Buffer().Data) {
						return errors.New(what("recv"))
					}
				}
				if dtype.IsFloat() {
					continue
				}
				var refused *ReduceError
				if err := g.AllReduce(ctx, x, collective.PremulSum(2)); !errors.As(err, &refused) || !strings.Contains(err.Error(), dtype.String()) {
					return fmt.Errorf("%s: %v", what("all-reduce"), err)
				}
				if err := g.ReduceScatter(ctx, x, all, collective.PremulSum(2)); !errors.As(err, &refused) {
					return fmt.Errorf("%s: %v", what("reduce-scatter"), err)
				}
			}
		}
		return nil
	})
}
