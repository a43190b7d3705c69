// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// TestSharedUpdate: an update that the writer shares with a helper does what many small ones do,
// which it shares with nobody: to rows, to keys that wait for their admission, to removed ones, and
// to an update that comes again.
func TestSharedUpdate(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))))
	for _, s := range []Schema{
		{Width: 7, Optimizer: Optimizer{Kind: SGD, LR: 0.3}},
		{Width: 3, DType: tensor.BFloat16, Optimizer: Optimizer{Kind: RowwiseAdagrad}, Admit: 2},
		{Width: 5, DType: tensor.Int8, Optimizer: Optimizer{Kind: LazyAdam}},
	} {
		t.Run(fmt.Sprintf("%s %v", s.Optimizer.Kind, s.DType), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seeded.Of(t), 5))
			shared, small := newTable(t, s), newTable(t, s)
			all := make([]int64, 0, 9000)
			for k := range int64(cap(all)) {
				all = append(all, k)
			}
			for lsn := uint64(1); lsn <= 6; lsn++ {
				n := int(lsn) * 1500 // of which the updates before had most
				keys := slices.Clone(all[:n])
				keys = slices.DeleteFunc(keys, func(int64) bool { return r.IntN(5) == 0 })
				grad := make([]float32, len(keys)*s.Width)
				for i := range grad {
					grad[i] = r.Float32() - 0.5
				}
				at := Mark{LSN: lsn, Step: lsn}
				update := func() {
					got, err := shared.Update(at, keys, grad)
					if err != nil {
						t.Fatal(err)
					}
					var want Changes
					for lo := 0; lo < len(keys); lo += sharedRows - 1 {
						hi := min(lo+sharedRows-1, len(keys))
						c, err := small.Update(at, keys[lo:hi], grad[lo*s.Width:hi*s.Width])
						if err != nil {
							t.Fatal(err)
						}
						want = Changes{want.Changed + c.Changed, want.Made + c.Made, want.Waiting + c.Waiting, want.Older + c.Older}
					}
					if got != want {
						t.Fatalf("entry %d: %+v, want %+v", lsn, got, want)
					}
				}
				update()
				update() // again
				if lsn%2 == 0 {
					gone := all[r.IntN(n-100):][:100]
					for _, table := range []*Table{shared, small} {
						table.Remove(Mark{LSN: lsn, Step: lsn}, gone)
					}
				}
				if err := sameBits(values(t, shared, all), values(t, small, all)); err != nil {
					t.Fatalf("entry %d: %v", lsn, err)
				}
			}
			got, want := shared.Stats(), small.Stats()
			got.Updates, want.Updates = 0, 0
			if got != want {
				t.Errorf("the statistics are %+v, want %+v", got, want)
			}
			if shared.helper == nil || small.helper != nil {
				t.Errorf("helpers: %t of the one, %t of the other", shared.helper != nil, small.helper != nil)
			}
		})
	}
}
