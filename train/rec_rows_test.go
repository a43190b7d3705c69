// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/dist"
)

// TestRecDealsRows: each rank holds the rows of its part of the file, and gets, in every
// epoch and from any position on, the batches of a job in which each rank holds all rows.
func TestRecDealsRows(t *testing.T) {
	c := smallRec(t)
	c.Data, c.Label = writeClicks(t, 2500), "click"
	c.Categories, c.Numbers = []string{"user_id", "item_id", "device"}, []string{"hour", "age", "price"}
	whole, _, err := c.open(t.Context(), table.Share{})
	if err != nil {
		t.Fatal(err)
	}
	const pass, numBatches = 70, 75 // two epochs and more
	for _, ranks := range []int{2, 3, 7} {
		for _, o := range []struct{ workers, most int }{{0, 1}, {2, 200}, {3, roundRows}} {
			feed := func(ctx context.Context, rank int, rows data.Dataset[table.Row], from data.LoaderState) (*data.Loader[table.Row, table.Batch], *data.Stream, error) {
				s, err := data.NewStream(data.StreamConfig{Len: whole.Len(), Total: pass, Rank: rank, World: ranks, Shuffle: true, Seed: 5})
				if err != nil {
					return nil, nil, err
				}
				l, err := data.NewLoader(ctx, rows, s, table.Unscaled(whole.Schema()).Collate, data.LoaderConfig{Workers: o.workers}, from)
				return l, s, err
			}
			var mu sync.Mutex
			held := 0
			err := dist.Spawn(t.Context(), ranks, func(ctx context.Context, g *dist.Group) error {
				training, _, err := c.open(ctx, shareOf(ctx, g))
				if err != nil {
					return err
				}
				mu.Lock()
				held += training.Len()
				mu.Unlock()
				if n := training.Len(); n < whole.Len()/ranks-50 || n > whole.Len()/ranks+50 {
					return fmt.Errorf("rank %d of %d holds %d rows of %d", g.Rank(), ranks, n, whole.Len())
				}
				var from data.LoaderState
				for _, upTo := range []int{1, numBatches} { // stopped after the first batch, and resumed
					dealt := newDealtRows(g, training)
					dealt.most = o.most
					loader, sampler, err := feed(ctx, g.Rank(), dealt, from)
					if err != nil {
						return err
					}
					got := &dealtFeed{Loader: loader, rows: dealt, sampler: sampler, pass: pass}
					want, _, err := feed(ctx, g.Rank(), whole, from)
					if err != nil {
						return err
					}
					for i := range upTo {
						a, err := got.Next(ctx)
						if err != nil {
							return err
						}
						b, err := want.Next(ctx)
						if err != nil {
							return err
						}
						if fmt.Sprint(a) != fmt.Sprint(b) {
							return fmt.Errorf("rank %d of %d, %+v: batch %d is %v, want %v", g.Rank(), ranks, o, i, a, b)
						}
					}
					from = got.State()
					got.Close()
					want.Close()
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if held != whole.Len() {
				t.Errorf("%d ranks hold %d rows, the file has %d", ranks, held, whole.Len())
			}
		}
	}
}
