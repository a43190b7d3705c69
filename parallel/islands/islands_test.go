// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// meetAll has n islands of one part meet in a store.
func meetAll(t *testing.T, s store.Store, n int) []*Island {
	t.Helper()
	all, errs := make([]*Island, n), make([]error, n)
	var meeting sync.WaitGroup
	for i := range n {
		meeting.Go(func() {
			all[i], _, errs[i] = Meet(t.Context(), Config{Store: s, Island: i, Islands: n, Settings: "the same"}, Standing{})
		})
	}
	meeting.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return all
}

// exchange has islands take an exchange together, and returns its members.
func exchange(ctx context.Context, t *testing.T, n int, of ...*Island) []int {
	t.Helper()
	rounds, errs := make([]*Round, len(of)), make([]error, len(of))
	var under sync.WaitGroup
	for at, i := range of {
		under.Go(func() { rounds[at], errs[at] = i.Exchange(ctx, n, fmt.Appendf(nil, "of %d", i.c.Island), 0) })
	}
	under.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for at, r := range rounds {
		if !slices.Equal(r.Members, rounds[0].Members) {
			t.Errorf("exchange %d: island %d has the members %v, and island %d %v", n, of[at].c.Island, r.Members, of[0].c.Island, rounds[0].Members)
		}
		for k, m := range r.Members {
			if want := fmt.Sprint("of ", m); string(r.Payloads[k]) != want {
				t.Errorf("exchange %d: island %d has %q of island %d, want %q", n, of[at].c.Island, r.Payloads[k], m, want)
			}
		}
	}
	return rounds[0].Members
}

// TestHurry: the others wait for a silent island until its silence is over, and until half of it is
// over if one of them stands still. Nobody waits for it in the exchanges afterwards.
func TestHurry(t *testing.T) {
	const eighth = DefaultSilence / 8 // between two signs of life, and two looks at them
	for _, c := range []struct {
		name        string
		hurry       []int // islands that stand still
		least, most time.Duration
	}{
		{"nobody stands still", nil, DefaultSilence - eighth, DefaultSilence + 2*eighth},
		{"one stands still", []int{0}, DefaultSilence/2 - eighth, DefaultSilence/2 + 2*eighth},
		{"all stand still", []int{0, 1}, DefaultSilence/2 - eighth, DefaultSilence/2 + 2*eighth},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := meetAll(t, store.NewMemory(), 3)
				if m := exchange(t.Context(), t, 0, all...); !slices.Equal(m, []int{0, 1, 2}) {
					t.Errorf("exchange 0 has the members %v", m)
				}
				all[2].Close() // it shows no life any more
				defer all[1].Close()
				defer all[0].Close()
				lost := time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					if m := exchange(t.Context(), t, 1, all[0], all[1]); !slices.Equal(m, []int{0, 1}) {
						t.Errorf("exchange 1 has the members %v", m)
					}
				}()
				synctest.Wait() // both have posted, and wait
				for _, i := range c.hurry {
					all[i].Hurry()
				}
				<-done
				took := time.Since(lost)
				if took < c.least || took > c.most {
					t.Errorf("exchange 1 took %v, want %v to %v", took, c.least, c.most)
				}
				again := time.Now()
				if m := exchange(t.Context(), t, 2, all[0], all[1]); !slices.Equal(m, []int{0, 1}) || time.Since(again) > 0 {
					t.Errorf("exchange 2 took %v with the members %v: somebody still waits for the lost island", time.Since(again), m)
				}
				t.Logf("the others went on after %v", took)
			})
		})
	}
}

// TestHurryIsOfOneExchange: who has stood still for an exchange does not stand still for the next.
func TestHurryIsOfOneExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := meetAll(t, store.NewMemory(), 2)
		defer all[0].Close()
		exchange(t.Context(), t, 0, all...)
		all[0].Hurry() // too late: exchange 0 is over
		all[1].Close()
		lost := time.Now()
		exchange(t.Context(), t, 1, all[0])
		if took := time.Since(lost); took < DefaultSilence*7/8 {
			t.Errorf("exchange 1 went on after %v, want the silence, %v", took, DefaultSilence)
		}
	})
}

// TestLeftBehind: an island that posts when the others have deleted what they exchanged is told so. It
// does not decide that exchange anew, for the others would not hear of it.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := meetAll(t, store.NewMemory(), 2)
		defer all[0].Close()
		defer all[1].Close()
		exchange(t.Context(), t, 0, all...)
		all[1].watch.stop() // as if the process had been stopped
		last := 1 + DefaultKeep
		for n := 1; n <= last; n++ {
			exchange(t.Context(), t, n, all[0])
		}
		for n, want := range map[int]error{1: ErrLeftBehind, last: nil} {
			if _, err := all[1].Exchange(t.Context(), n, []byte("late"), 0); !errors.Is(err, want) {
				t.Errorf("exchange %d of %d came to %v, want %v", n, last, err, want)
			}
		}
	})
}
