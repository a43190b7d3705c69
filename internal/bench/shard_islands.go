// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/islands"
)

// islandSteps returns the steps between exchanges of a strategy diloco:H, 0 for another strategy.
func islandSteps(strategy string) (every int, err error) {
	text, is := strings.CutPrefix(strategy, "diloco")
	if !is {
		return 0, nil
	}
	digits, has := strings.CutPrefix(text, ":")
	if every, err = strconv.Atoi(digits); !has || err != nil || every < 1 {
		return 0, fmt.Errorf("strategy %q: want diloco:H, where H is the steps between exchanges, such as diloco:10", strategy)
	}
	return every, nil
}

// checkIslandSteps reports steps that do not end with an exchange: an exchange counts for all of its steps.
func (o ShardOptions) checkIslandSteps() error {
	every, err := islandSteps(o.Strategy)
	if err == nil && every > 0 && o.Steps%every != 0 {
		err = fmt.Errorf("%d steps are measured with an exchange every %d: %d %% %d = %d; change --steps, such as to %d", o.Steps, every, o.Steps, every, o.Steps%every, (o.Steps/every+1)*every)
	}
	return err
}

// newIslands makes each rank an island. They meet in a store of rank 0.
func newIslands(ctx context.Context, model any, group *dist.Group, every int) (d *parallel.DiLoCo, err error) {
	type place struct{ Addr, Token string }
	var at place
	var open []io.Closer
	end := func() {
		for _, c := range slices.Backward(open) {
			_ = c.Close()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	if group.Rank() == 0 {
		at.Token = transport.NewToken().Text()
		served, err := store.Listen("127.0.0.1:0", at.Token)
		if err != nil {
			return nil, err
		}
		open, at.Addr = append(open, served), served.Addr()
	}
	if at, err = dist.BroadcastObject(ctx, group, at, 0); err != nil {
		return nil, err
	}
	s, err := store.Dial(ctx, at.Addr, at.Token)
	if err != nil {
		return nil, err
	}
	open = append(open, s)
	alone, err := group.NewGroup(ctx, []int{group.Rank()})
	if err != nil {
		return nil, err
	}
	inner, err := parallel.NewSingle(model)
	if err != nil {
		return nil, err
	}
	d, err = parallel.NewDiLoCo(inner, alone, parallel.DiLoCoOptions{
		Every:   every,
		Islands: islands.Config{Store: s, Island: group.Rank(), Islands: group.Size()},
	})
	if err != nil {
		return nil, err
	}
	d.OnClose(end)
	return d, nil
}

// exchanged takes the exchange that is under way, and returns what this rank's exchanges have taken
// so far. Without islands it returns nothing.
func exchanged(ctx context.Context, s parallel.Strategy) (parallel.DiLoCoStats, error) {
	d, is := s.(*parallel.DiLoCo)
	if !is {
		return parallel.DiLoCoStats{}, nil
	}
	err := d.Settle(ctx)
	return d.Stats(), err
}

// closeIslands ends the islands, once all ranks are done.
func closeIslands(ctx context.Context, group *dist.Group, s parallel.Strategy) error {
	d, is := s.(*parallel.DiLoCo)
	if !is {
		return nil
	}
	left := d.Leave(ctx)
	err := cmp.Or(left, group.Barrier(ctx))
	d.Close()
	return err
}

// outerBytes returns what an island holds for the outer optimizer.
func outerBytes(s parallel.Strategy) (sum int64) {
	if d, is := s.(*parallel.DiLoCo); is {
		for _, t := range d.OuterState() {
			sum += bytesOf(t.Tensor)
		}
	}
	return sum
}
