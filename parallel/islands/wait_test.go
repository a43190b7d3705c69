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

// TestWaitIsTold: an island that waits for others to come, or to post, says for whom.
func TestWaitIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		waits := make(chan Wait, 100)
		config := func(island int) Config {
			c := Config{Store: s, Island: island, Islands: 3, Patience: time.Minute}
			if island == 0 {
				c.OnWait = func(w Wait) { waits <- w }
			}
			return c
		}
		met := make(chan *Island, 3)
		meet := func(island int) {
			i, _, err := Meet(t.Context(), config(island), Standing{})
			if err != nil {
				t.Errorf("island %d: %v", island, err)
			}
			met <- i
		}
		go meet(0)
		w := <-waits
		if !slices.Equal(w.For, []int{1, 2}) || w.Exchange != Meeting || w.Took < 2*DefaultSilence || w.Took > 3*DefaultSilence {
			t.Errorf("the first wait is %+v", w)
		}
		go meet(2)
		w = <-waits
		if want := "waiting for island 1 to come, for 8s so far and 1m0s at most"; !strings.Contains(w.String(), want) {
			t.Errorf("the second wait is %q, want %q", w, want)
		}
		go meet(1)
		var all []*Island
		for range 3 {
			i := <-met
			if i == nil {
				t.Fatal("an island has not met the others")
			}
			defer i.Close()
			all = append(all, i)
		}
		slices.SortFunc(all, func(a, b *Island) int { return a.c.Island - b.c.Island })
		exchanged := make(chan error, 3)
		exchange := func(i *Island) {
			_, err := i.Exchange(t.Context(), 0, []byte{1}, 0)
			exchanged <- err
		}
		go exchange(all[0])
		go exchange(all[1])
		synctest.Wait()
		all[0].Hurry()
		w = <-waits
		if !slices.Equal(w.For, []int{2}) || w.Exchange != 0 || !strings.Contains(w.String(), "exchange 0 waits for island 2, which lives and has not posted, for 16s so far") {
			t.Errorf("the wait of the exchange is %+v: %v", w, w)
		}
		go exchange(all[2])
		for range 3 {
			if err := <-exchanged; err != nil {
				t.Error(err)
			}
		}
		if len(waits) > 0 {
			t.Errorf("a further wait was told: %v", <-waits)
		}
	})
}

// TestWaitEnds: an island for which nobody comes ends with the names of the others, when its patience
// has ended or its context.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, told := range []bool{true, false} {
			c := Config{Store: store.NewMemory(), Island: 1, Islands: 12}
			if told {
				c.OnWait = func(Wait) {}
			}
			begun := time.Now()
			_, _, err := Meet(t.Context(), c, Standing{})
			if err == nil || !strings.Contains(err.Error(), "of which 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 did not come") || time.Since(begun) != DefaultPatience {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, _, err = Meet(ctx, c, Standing{})
			cancel()
			if err == nil || !strings.Contains(err.Error(), "did not come") {
				t.Error(err)
			}
		}
	})
}
