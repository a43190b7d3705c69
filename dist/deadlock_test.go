// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// crossed are programs of which rank 1's waits for rank 0, and rank 0's for
// rank 1, in calls that do not meet; rank 2 is in group a alone.
var crossed = []struct {
	name      string
	most, one func(ctx context.Context, a, b *Group) error
	texts     []string
}{
	{"groups", func(ctx context.Context, a, b *Group) error { return sumOf4(ctx, a) },
		func(ctx context.Context, a, b *Group) error { return b.Barrier(ctx) },
		[]string{"all_reduce sum of 4 float32", "barrier"}},
	{"order of groups", func(ctx context.Context, a, b *Group) error {
		if err := sumOf4(ctx, a); err != nil || b == nil {
			return err
		}
		return sumOf4(ctx, b)
	}, func(ctx context.Context, a, b *Group) error {
		if err := sumOf4(ctx, b); err != nil {
			return err
		}
		return sumOf4(ctx, a)
	}, []string{"all_reduce sum of 4 float32 at", "all_reduce sum of 4 float32 on group"}},
	{"collective and message", func(ctx context.Context, a, b *Group) error { return sumOf4(ctx, a) },
		func(ctx context.Context, a, b *Group) error { return a.Recv(ctx, private(tensor.Float32, 2), 0) },
		[]string{"all_reduce sum of 4 float32", "recv of 2 float32 from rank 0"}},
	{"both receive first", func(ctx context.Context, a, b *Group) error {
		if a.Rank() == 2 {
			return sumOf4(ctx, a)
		}
		return a.Recv(ctx, private(tensor.Float32, 2), 1)
	}, func(ctx context.Context, a, b *Group) error { return a.Recv(ctx, private(tensor.Float32, 2), 0) },
		[]string{"recv of 2 float32 from rank"}},
	{"both send first", func(ctx context.Context, a, b *Group) error {
		if a.Rank() == 2 {
			return sumOf4(ctx, a)
		}
		return a.Send(ctx, private(tensor.Float32, 1<<23), 1)
	}, func(ctx context.Context, a, b *Group) error { return a.Send(ctx, private(tensor.Float32, 1<<23), 0) },
		[]string{"send of 8388608 float32 to rank"}},
}

func sumOf4(ctx context.Context, g *Group) error {
	return g.AllReduce(ctx, private(tensor.Float32, 4), Sum)
}

// cross plays one of them and returns when the rank was told.
func cross(ctx context.Context, g *Group, kind int) (told time.Duration, err error) {
	a, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("a"))
	if err != nil {
		return 0, err
	}
	var b *Group
	if g.Rank() < 2 {
		if b, err = g.NewGroup(ctx, []int{1, 0}, WithName("b")); err != nil {
			return 0, err
		}
		if err := sumOf4(ctx, b); err != nil {
			return 0, err
		}
	}
	if err := sumOf4(ctx, a); err != nil {
		return 0, err
	}
	start := time.Now()
	if g.Rank() == 1 {
		err = crossed[kind].one(ctx, a, b)
	} else {
		err = crossed[kind].most(ctx, a, b)
	}
	return time.Since(start), err
}

// crossError returns what is wrong with the error of a rank of a program.
func crossError(err error, kind int) error {
	var m *MismatchError
	if !errors.As(err, &m) || !strings.Contains(m.Here.Site, "deadlock_test.go") || !strings.Contains(m.There.Site, "deadlock_test.go") {
		return fmt.Errorf("not a mismatch with both lines: %w", err)
	}
	if group := m.Here.Group + m.There.Group; kind < 2 && group != "a" && group != "b" {
		return fmt.Errorf("the other group is %q: %w", group, err)
	}
	for _, want := range crossed[kind].texts {
		if !strings.Contains(err.Error(), want) {
			return fmt.Errorf("no %q: %w", want, err)
		}
	}
	return nil
}

// TestCallsThatWaitForEachOther has two ranks wait for each other in calls that
// do not meet, over every transport: all ranks are told of both calls.
func TestCallsThatWaitForEachOther(t *testing.T) {
	t.Parallel()
	var most time.Duration
	kind := 0
	failing(t, 3, func(ctx context.Context, g *Group) error {
		told, err := cross(ctx, g, kind)
		if g.Rank() == 0 {
			most = max(most, told)
		}
		return err
	}, func(errs []error) error {
		for r, err := range errs {
			if wrong := crossError(err, kind); wrong != nil {
				return fmt.Errorf("rank %d: %w", r, wrong)
			}
		}
		return nil
	})
	if t.Logf("found within %v", most); most > loaded.Allow(3*time.Second) {
		t.Errorf("found after %v", most)
	}
}

// TestKindsOfWaitsForEachOther does so in all ways, in virtual time.
func TestKindsOfWaitsForEachOther(t *testing.T) {
	for kind, tc := range crossed {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errs, told := make([]error, 3), make([]time.Duration, 3)
				_ = Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
					told[g.Rank()], errs[g.Rank()] = cross(ctx, g, kind)
					return errs[g.Rank()]
				})
				for r, err := range errs {
					if wrong := crossError(err, kind); wrong != nil {
						t.Errorf("rank %d: %v", r, wrong)
					}
					if told[r] > time.Second {
						t.Errorf("rank %d was told after %v", r, told[r])
					}
				}
			})
		})
	}
}

// forgetful is a backend to whose first questions nobody answers.
type forgetful struct {
	backend.Communicator
	lost atomic.Int64
}

func (f *forgetful) Ask(rank int, stop <-chan struct{}) Doing {
	if f.lost.Add(-1) >= 0 {
		return Doing{}
	}
	return f.Communicator.(backend.Asker).Ask(rank, stop)
}

// TestAnswersThatAreLost has two ranks wait for each other whose processes were held up
// when they were asked: they are asked again.
func TestAnswersThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := make([]error, 2)
		_ = Spawn(t.Context(), 2, func(ctx context.Context, g *Group) error {
			sub, err := g.NewGroup(ctx, []int{0, 1})
			if err != nil {
				return err
			}
			for _, g := range []*Group{g, sub} {
				comm := &forgetful{Communicator: g.comm}
				comm.lost.Store(3)
				g.mu.Lock()
				g.comm = comm
				g.mu.Unlock()
			}
			if g.Rank() == 0 {
				errs[0] = g.Barrier(ctx)
			} else {
				errs[1] = sub.Barrier(ctx)
			}
			return errs[g.Rank()]
		})
		for r, err := range errs {
			if !errors.As(err, new(*MismatchError)) {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// TestWaitsThatEnd has ranks wait long for each other in ways that come to an
// end, which the guard must leave alone.
func TestWaitsThatEnd(t *testing.T) {
	const long = 3 * time.Second
	for name, main := range map[string]func(ctx context.Context, a, b *Group) error{
		// Each group has a goroutine of its own, and either is late once.
		"goroutines": func(ctx context.Context, a, b *Group) error {
			done := make(chan error, 2)
			for i, g := range []*Group{a, b} {
				go func() {
					if i == a.Rank() {
						time.Sleep(long)
					}
					done <- g.Barrier(ctx)
				}()
			}
			return errors.Join(<-done, <-done)
		},
		// Rank 1 has made the call that rank 0 waits in, and waits for it in
		// another one; rank 2 is late.
		"asynchronous": func(ctx context.Context, a, b *Group) error {
			if a.Rank() == 2 {
				time.Sleep(long)
			}
			if a.Rank() != 1 {
				return errors.Join(a.Barrier(ctx), b.Barrier(ctx))
			}
			w := a.BarrierAsync(ctx)
			return errors.Join(b.Barrier(ctx), w.Wait(ctx))
		},
		"one is late": func(ctx context.Context, a, b *Group) error {
			if a.Rank() == 1 {
				time.Sleep(long)
			}
			return errors.Join(a.Barrier(ctx), b.Barrier(ctx))
		},
		// Rank 1 needs the root of its broadcast alone, which is late; rank 0
		// is not there yet either.
		"broadcast": func(ctx context.Context, a, b *Group) error {
			x := private(tensor.Float32, 3)
			switch a.Rank() {
			case 0:
				return errors.Join(a.Recv(ctx, x, 1), b.Broadcast(ctx, x, 2))
			case 1:
				return errors.Join(b.Broadcast(ctx, x, 2), a.Send(ctx, x, 0))
			}
			time.Sleep(long)
			return b.Broadcast(ctx, x, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := Spawn(t.Context(), 3, func(ctx context.Context, g *Group) error {
					a, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("a"))
					if err != nil {
						return err
					}
					b, err := g.NewGroup(ctx, []int{0, 1, 2}, WithName("b"))
					if err != nil {
						return err
					}
					return main(ctx, a, b)
				})
				// In shared memory the broadcast waits for rank 0 too, until
				// its time is up; over sockets it ends.
				var mismatch *MismatchError
				if errors.As(err, &mismatch) || err != nil && name != "broadcast" {
					t.Error(err)
				}
			})
		})
	}
}
