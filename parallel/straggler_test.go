// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// heavy is a model whose forward pass takes some time.
type heavy struct {
	*toy
	time time.Duration
}

func (m *heavy) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	time.Sleep(m.time)
	return c.Call(m.toy, ids)
}

// namesStraggler trains with a rank that is slower by 30 % than the others, whose
// forward pass takes a time, and returns at which step, counted from 1, and as what
// it was named first.
func namesStraggler(ctx context.Context, g *dist.Group, slow int, pass time.Duration) (step int, what Straggler, err error) {
	m := &heavy{newToy(1, width), pass}
	if g.Rank() == slow {
		m.time = pass * 13 / 10
	}
	told, at := 0, 0
	ddp, err := NewDDP(ctx, m, g, small, WithOnStraggler(func(s Straggler) {
		if told++; told == 1 {
			step, what = at, s
		}
	}))
	if err != nil {
		return 0, what, err
	}
	opt := optimizers["sgd"](nn.Parameters(m))
	in := newBatches(g.Rank(), g.Size(), 8)
	for at = 1; at <= 24; at++ {
		opt.ZeroGrad()
		ids, targets := in.next()
		if _, err := backward(ctx, ddp, ids, targets); err != nil {
			return 0, what, err
		}
		opt.Step(nil)
	}
	if told != 1 {
		return 0, what, fmt.Errorf("rank %d was told of a straggler %d times", g.Rank(), told)
	}
	return step, what, nil
}

// TestStragglerIsNamed slows one rank of three down by 30 %: within 20 steps all
// know which it is, once.
func TestStragglerIsNamed(t *testing.T) {
	pass := 20 * time.Millisecond
	check := func(ctx context.Context, g *dist.Group) error {
		const slow = 2
		step, what, err := namesStraggler(ctx, g, slow, pass)
		if err != nil {
			return err
		}
		if step > 20 || what.Rank != slow || what.Wait < 2*time.Millisecond || what.Step < 20*time.Millisecond ||
			!strings.Contains(what.String(), "is slow: the others wait") || !strings.HasPrefix(what.String(), "rank 2") {
			return fmt.Errorf("rank %d: in step %d: %v", g.Rank(), step, what)
		}
		t.Logf("rank %d, step %d: %v", g.Rank(), step, what)
		return nil
	}
	t.Run("goroutines", func(t *testing.T) {
		tensor.CPU() // starts threads that outlive the bubble
		synctest.Test(t, func(t *testing.T) {
			if err := spawn(t, 3, check); err != nil {
				t.Error(err)
			}
		})
	})
	t.Setenv("COHORT_TOKEN", transport.NewToken().Text())
	for _, link := range []string{"shm", "tcp"} {
		t.Run(link, func(t *testing.T) {
			t.Setenv("COHORT_TRANSPORT", link)
			var err error
			// On a machine with other work, others may be slow too, by some milliseconds.
			for _, pass = range []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 320 * time.Millisecond} {
				if err = initRanks(t, 3, check); err == nil {
					return
				}
				t.Log(err)
			}
			t.Error(err)
		})
	}
}

// TestStragglerIsSaid: a program that says nothing of slow ranks hears of one that is 20 ms late in
// every step, once, from rank 0; one that wants to hear nothing does not.
func TestStragglerIsSaid(t *testing.T) {
	tensor.CPU() // starts threads that outlive the bubble
	for name, opts := range map[string][]DDPOption{"nothing": {small}, "nil": {small, WithOnStraggler(nil)}} {
		said, err := os.Create(filepath.Join(t.TempDir(), "said"))
		if err != nil {
			t.Fatal(err)
		}
		defer said.Close()
		old := os.Stderr
		os.Stderr = said
		synctest.Test(t, func(t *testing.T) {
			err = spawn(t, 3, func(ctx context.Context, g *dist.Group) error {
				m := &heavy{newToy(1, width), 20 * time.Millisecond}
				if g.Rank() == 1 {
					m.time *= 2
				}
				ddp, err := NewDDP(ctx, m, g, opts...)
				if err != nil {
					return err
				}
				in := newBatches(g.Rank(), g.Size(), 8)
				for range 300 {
					ids, targets := in.next()
					if _, err := backward(ctx, ddp, ids, targets); err != nil {
						return err
					}
				}
				return nil
			})
		})
		os.Stderr = old
		text, readErr := os.ReadFile(said.Name())
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		want := 1
		if name == "nil" {
			want = 0
		}
		if n := strings.Count(string(text), "is slow: the others wait"); n != want || want == 1 && !strings.HasPrefix(string(text), "cohort: rank 1 ") {
			t.Errorf("%s said of slow ranks: %q is written", name, text)
		}
	}
}

// initRanks runs ranks that find each other as processes do.
func initRanks(t *testing.T, n int, main func(ctx context.Context, g *dist.Group) error) error {
	addr := freeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			g, err := dist.Init(ctx, dist.WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, r, n)))
			if err == nil {
				err = errors.Join(main(ctx, g), g.Close())
			}
			errs[r] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestStragglerNews: a slow rank is told of once.
func TestStragglerNews(t *testing.T) {
	w := stragglerWatch{told: map[int]bool{}}
	for i, tc := range []struct {
		shares []float64
		want   int // at the end of a quiet time
	}{
		{nil, -1},
		{[]float64{0, 0.09, 0}, -1},
		{[]float64{0.1, 0.19, 0.1}, -1}, // all are late now and then
		{[]float64{0, 0.3, 0.1}, 1},
		{[]float64{0, 0.3, 0.1}, -1},
		{[]float64{0, 0.05, 0.055}, -1},
		{[]float64{0, 0.1, 0.3}, 2},
		{[]float64{0, 0, 0.06}, -1},
		{[]float64{0, 0, 0.3}, -1}, // it never was quick
		{[]float64{0, 0, 0.04}, -1},
		{[]float64{0, 0, 0.3}, -1},
		{[]float64{0.4, 0, 0}, 0},
	} {
		var skew []dist.RankSkew
		for r, s := range tc.shares {
			skew = append(skew, dist.RankSkew{Rank: r, Share: s, Step: 100 * time.Millisecond})
		}
		got := -1
		w.until = 0
		for range slowSteps {
			if row, ok := w.news(skew); ok {
				got = row.Rank
			}
		}
		if got != tc.want {
			t.Errorf("case %d: told of rank %d, want %d", i, got, tc.want)
		}
	}
	// Ranks that are late in turns are told of once each, with more and more time between, and not
	// at all where their turns are short.
	for i := range 1000 {
		skew := []dist.RankSkew{{Rank: 0, Step: 100 * time.Millisecond}, {Rank: 1, Step: 100 * time.Millisecond}}
		skew[i/2%2].Share = 0.5
		if row, ok := (&w).news(skew); ok {
			t.Errorf("rank %d was told of, which is late in every other step", row.Rank)
		}
	}
	w = stragglerWatch{told: map[int]bool{}}
	told := 0
	for i := range 100_000 {
		skew := make([]dist.RankSkew, 3)
		for r := range skew {
			skew[r] = dist.RankSkew{Rank: r, Step: 100 * time.Millisecond}
		}
		skew[i/20%3].Share = 0.3
		if _, ok := w.news(skew); ok {
			told++
		}
	}
	if told != 3 {
		t.Errorf("ranks that are late in turns were told of %d times", told)
	}
	// Nearly all of a time that does not matter is not worth a word.
	w = stragglerWatch{told: map[int]bool{}}
	for range 100 {
		if row, ok := w.news([]dist.RankSkew{{Rank: 0, Share: 1, Step: 2390 * time.Microsecond}, {Rank: 1, Step: 2390 * time.Microsecond}}); ok {
			t.Fatalf("%v was worth a word", row)
		}
	}
	s := Straggler{Member: dist.Member{Rank: 2, Host: "h", PID: 4711}, Wait: 13_123_456 * time.Nanosecond, Step: 1_345_678_901 * time.Nanosecond}
	if want := "rank 2 (host h, pid 4711) is slow: the others wait 13.1ms of 1.35s a step for it"; s.String() != want {
		t.Errorf("%q, want %q", s, want)
	}
}
