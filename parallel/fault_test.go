// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/nn"
)

// TestPeerFailsInMidBackward: one rank gives up after its first buckets are on
// their way; the backward passes of the others end with an error that names it
// and what they were waiting for.
func TestPeerFailsInMidBackward(t *testing.T) {
	const culprit = 1
	broken := errors.New("the disk is on fire")
	told := make([]error, 3)
	err := spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		if g.Rank() == culprit {
			m.Hidden.Layers[0].(*nn.Linear).Weight.OnGradReady(func(context.Context, *nn.Parameter) error { return broken })
		}
		ids, targets := newBatches(g.Rank(), g.Size(), 8).next()
		_, told[g.Rank()] = backward(ctx, ddp, ids, targets)
		return told[g.Rank()]
	})
	if !errors.Is(err, broken) {
		t.Errorf("the job failed with %v, want the culprit's own error", err)
	}
	for rank, err := range told {
		if rank == culprit {
			if !errors.Is(err, broken) || !strings.Contains(err.Error(), "gradient of hidden.0.weight") {
				t.Errorf("the culprit's error is %v", err)
			}
			continue
		}
		var re *dist.RankError
		if !errors.As(err, &re) || re.Rank != culprit || !strings.Contains(err.Error(), "average the gradients of bucket") {
			t.Errorf("rank %d: %v, want a *dist.RankError that names rank %d, and the bucket", rank, err, culprit)
		}
	}
}

// TestContextEndsBackward: a rank that waits for a peer which never comes ends
// with its context, and says for whom it waited.
func TestContextEndsBackward(t *testing.T) {
	var told error
	ended := make(chan struct{})
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		if g.Rank() == 1 { // it takes no part
			<-ended
			return nil
		}
		defer close(ended)
		short, cancel := context.WithTimeout(ctx, loaded.Allow(200*time.Millisecond)) // in which it comes to the wait
		defer cancel()
		ids, targets := newBatches(0, 2, 8).next()
		_, told = backward(short, ddp, ids, targets)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(told, context.DeadlineExceeded) || !strings.Contains(told.Error(), "rank 1") {
		t.Errorf("the error is %v, want one of the deadline that names rank 1", told)
	}
}

// TestNoStepAfterAFailedOne: after a backward pass that ended half way a rank
// is out of step, and is told so instead of mixing up buckets.
func TestNoStepAfterAFailedOne(t *testing.T) {
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		ddp, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		remove := m.Norm.Bias.OnGradReady(func(context.Context, *nn.Parameter) error { return errors.New("not today") })
		ids, targets := newBatches(0, 1, 8).next()
		if _, err := backward(ctx, ddp, ids, targets); err == nil {
			return errors.New("the hook's error was lost")
		}
		remove()
		if _, err := backward(ctx, ddp, ids, targets); err == nil || !strings.Contains(err.Error(), "earlier backward pass") {
			return fmt.Errorf("the next pass gives %v", err)
		}
		missing := func() (n int) {
			for _, b := range nativeOf(ddp).buckets {
				n += b.missing
			}
			return n
		}
		left := missing()
		next, err := NewDDP(ctx, m, g, small)
		if err != nil {
			return err
		}
		if _, err := backward(ctx, next, ids, targets); err != nil {
			return fmt.Errorf("a new DDP of the model: %w", err)
		}
		if left == 0 || missing() != left {
			return fmt.Errorf("the old DDP waited for %d gradients before the new one's pass, for %d after it", left, missing())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestShapeErrorThroughDDP: the module's name is that in the model, and the
// wrapper adds nothing.
func TestShapeErrorThroughDDP(t *testing.T) {
	err := spawn(t, 1, func(ctx context.Context, g *dist.Group) error {
		m := newToy(0, width)
		m.Hidden.Layers[2] = nn.NewLinear(&nn.Build{}, 2*width+1, width)
		ddp, err := NewDDP(ctx, m, g)
		if err != nil {
			return err
		}
		if n, want := nn.NumParams(ddp), nn.NumParams(m); n != want || nn.StateDict(ddp)[0].Name != "tokens.weight" {
			return fmt.Errorf("DDP has %d parameters, its model %d", n, want)
		}
		ids, targets := newBatches(0, 1, 8).next()
		_, err = backward(ctx, ddp, ids, targets)
		var fe *nn.ForwardError
		if !errors.As(err, &fe) || fe.Module != "hidden.2" || !strings.Contains(err.Error(), "[32 65]") {
			return fmt.Errorf("the error is %w, want a *nn.ForwardError about hidden.2 with its shape", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
