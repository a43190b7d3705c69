// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// TestSameIslandTwice: of two processes that are the same island, the later one is refused if the
// earlier one lives. If the earlier one was silent, it ends when it finds the later one.
func TestSameIslandTwice(t *testing.T) {
	config := func(s store.Store, island int) Config {
		return Config{Store: s, Island: island, Islands: 11, Patience: time.Minute}
	}
	meet := func(t *testing.T, s store.Store, numbers ...int) []*Island {
		t.Helper()
		met := make(chan *Island, len(numbers))
		for _, n := range numbers {
			go func() {
				i, _, err := Meet(t.Context(), config(s, n), Standing{})
				if err != nil {
					t.Errorf("island %d: %v", n, err)
				}
				met <- i
			}()
		}
		var all []*Island
		for range numbers {
			i := <-met
			if i == nil {
				t.Fatal("an island has not met the others")
			}
			all = append(all, i)
		}
		slices.SortFunc(all, func(a, b *Island) int { return a.c.Island - b.c.Island })
		return all
	}
	every := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for name, c := range map[string]struct {
		before func(t *testing.T, first *Island)
		refuse string // the later one
		oust   bool   // the earlier one
	}{
		"lives":  {func(*testing.T, *Island) {}, "another process is island 1 already, and lives", false},
		"silent": {func(_ *testing.T, first *Island) { first.watch.stop() }, "", true},
		"left": {func(t *testing.T, first *Island) {
			if err := first.Leave(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Nanosecond) // of virtual time: births differ
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := store.NewMemory()
				all := meet(t, s, every...)
				for _, i := range all {
					defer i.Close()
				}
				c.before(t, all[1])
				second, _, err := Meet(t.Context(), config(s, 1), Standing{})
				switch {
				case c.refuse != "" && (err == nil || !strings.Contains(err.Error(), c.refuse)):
					t.Errorf("the later one: %v, want %q", err, c.refuse)
				case c.refuse == "" && err != nil:
					t.Errorf("the later one: %v", err)
				case err == nil:
					defer second.Close()
				}
				if err := all[1].watch.look(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := all[1].watch.ousted(); (err != nil) != c.oust {
					t.Errorf("the earlier one: %v", err)
				}
				if _, err := all[1].Exchange(t.Context(), 0, nil, 0); c.oust && (err == nil || !strings.Contains(err.Error(), "another process has become island 1")) {
					t.Errorf("the earlier one: %v", err)
				}
			})
		})
	}
	t.Run("at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := store.NewMemory()
			errs := make(chan error, 2)
			for range 2 {
				go func() {
					i, _, err := Meet(t.Context(), config(s, 0), Standing{})
					if err == nil {
						defer i.Close()
					}
					errs <- err
				}()
				time.Sleep(time.Nanosecond) // of virtual time: births differ
			}
			time.Sleep(DefaultSilence)
			for _, i := range meet(t, s, every[1:]...) {
				defer i.Close()
			}
			a, b := <-errs, <-errs
			if a == nil {
				a, b = b, a
			}
			if a == nil || !strings.Contains(a.Error(), "another process has become island 0") || b != nil {
				t.Errorf("of two processes that wait for the others, one gets %v, and the other %v", a, b)
			}
		})
	})
}

// TestEarlierStartTookPart: an island is lost after it has posted, and comes back before the exchange
// is decided. The earlier start took part: what the later one has posted is not among the payloads.
func TestEarlierStartTookPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		config := func(island int) Config { return Config{Store: s, Island: island, Islands: 2} }
		met := make(chan *Island, 2)
		for island := range 2 {
			go func() {
				i, _, err := Meet(t.Context(), config(island), Standing{})
				if err != nil {
					t.Error(err)
				}
				met <- i
			}()
		}
		stays, first := <-met, <-met
		if stays == nil || first == nil {
			t.FailNow()
		}
		if stays.c.Island != 0 {
			stays, first = first, stays
		}
		defer stays.Close()
		ctx, lose := context.WithCancel(t.Context())
		lost := make(chan struct{})
		go func() {
			defer close(lost)
			_, _ = first.Exchange(ctx, 0, []byte{1}, 0)
		}()
		synctest.Wait()
		lose()
		<-lost
		first.Close()
		stays.watch.stop()                                                // it has not seen the later start when it decides
		second, _, err := Meet(t.Context(), config(1), Standing{Next: 1}) // as from a checkpoint
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		rounds := make(chan *Round, 1)
		go func() {
			r, err := stays.Exchange(t.Context(), 0, []byte{0}, 0)
			if err != nil {
				t.Error(err)
			}
			rounds <- r
		}()
		if r := <-rounds; r == nil || !r.Present || !slices.Equal(r.Members, []int{0, 1}) || r.Payloads[1][0] != 1 {
			t.Fatalf("island 0 gets %+v", r)
		}
		r, err := second.Exchange(t.Context(), 0, []byte{2}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if r.Present || !slices.Equal(r.Members, []int{0, 1}) || r.Payloads[1][0] != 1 {
			t.Errorf("the later start of island 1 gets %+v", r)
		}
	})
}
