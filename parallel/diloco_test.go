// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel/islands"
	"github.com/cohort-ml/cohort/tensor"
)

// archipelago is a set of islands that train toys, each a job of its own.
type archipelago struct {
	t       *testing.T
	store   store.Store
	islands int
	ranks   int // of an island
	steps   int
	options DiLoCoOptions
	spread  func(ctx context.Context, m *toy, g *dist.Group) (Strategy, error) // nil is Single or DDP
	// each is called after each step of an island, on its rank 0; an error ends the island.
	each func(island, step int) error
	// took is called for each exchange that an island takes, on its rank 0. enough says that an
	// island ends before it posts an exchange, in place of steps; nil is never.
	took   func(x Exchange)
	enough func(next int) bool
	change func(island int, o *DiLoCoOptions)
	absent int // the last so many islands never come
	// from is the state that an island begins with; nil for none.
	from func(island int, d *DiLoCo, m *toy)
}

// islandEnd is what an island has come to.
type islandEnd struct {
	digest string // of the model
	stats  DiLoCoStats
	rounds []Exchange
	err    error
}

// run trains one island to its end.
func (a *archipelago) run(ctx context.Context, island int) (end islandEnd) {
	end.err = dist.Spawn(ctx, max(a.ranks, 1), func(ctx context.Context, g *dist.Group) error {
		m := newToy(1, width)
		var s Strategy
		var err error
		switch {
		case a.spread != nil:
			s, err = a.spread(ctx, m, g)
		case g.Size() == 1:
			s, err = NewSingle(m)
		default:
			s, err = NewDDP(ctx, m, g)
		}
		if err != nil {
			return err
		}
		o := a.options
		o.Islands = islands.Config{Store: a.store, Island: island, Islands: a.islands, Silence: o.Islands.Silence, Patience: o.Islands.Patience}
		if a.change != nil {
			a.change(island, &o)
		}
		d, err := NewDiLoCo(s, g, o)
		if err != nil {
			return err
		}
		defer d.Close()
		d.OnExchange(func(x Exchange) {
			if g.Rank() == 0 {
				end.rounds = append(end.rounds, x)
				if a.took != nil {
					a.took(x)
				}
			}
		})
		opt := optim.NewAdamW(nn.Parameters(m), optim.AdamWOptions{LR: 0.01})
		if a.from != nil {
			a.from(island, d, m)
		}
		for step := 0; step < a.steps || a.enough != nil && !a.enough(d.next); step++ {
			opt.ZeroGrad()
			if _, err := d.Step(ctx, []Microbatch{toyBatch(d, int64(step*a.islands*g.Size()+island*g.Size()+g.Rank()))}); err != nil {
				return err
			}
			opt.Step(nil)
			if err := d.Updated(ctx); err != nil {
				return err
			}
			if a.each != nil && g.Rank() == 0 {
				if err := a.each(island, step); err != nil {
					return err
				}
			}
		}
		if err := d.Finish(ctx); err != nil {
			return err
		}
		digest := ""
		for _, p := range d.params {
			digest += fmt.Sprint(p.param.Data().Float32s())
		}
		if g.Rank() == 0 {
			end.digest, end.stats = digest, d.Stats()
		}
		return g.Barrier(ctx)
	})
	return end
}

// toyBatch is a pass on samples by their number.
func toyBatch(s Strategy, n int64) Microbatch {
	return Microbatch{
		Carrier: func(ctx context.Context) *nn.Ctx { return nn.Training(ctx) },
		Loss: func(c *nn.Ctx) *tensor.Tensor {
			ids := tensor.FromInt64([]int64{n % numIDs, 3 * n % numIDs, (n + 7) % numIDs})
			return tensor.CrossEntropy(c.Call(s, ids), tensor.FromInt64([]int64{n % classes, (n + 3) % classes, 3 * n % classes}))
		},
	}
}

// all runs all islands.
func (a *archipelago) all() []islandEnd {
	a.t.Helper()
	ctx, cancel := context.WithTimeoutCause(a.t.Context(), time.Minute, errors.New("the test's limit"))
	defer cancel()
	ends := make([]islandEnd, a.islands-a.absent)
	var running sync.WaitGroup
	for i := range ends {
		running.Go(func() { ends[i] = a.run(ctx, i) })
	}
	running.Wait()
	return ends
}

// TestIslandsEndAlike: whatever is exchanged how, all islands end with the same parameters, bit for
// bit, and have taken the same exchanges.
func TestIslandsEndAlike(t *testing.T) {
	fsdp := func(ctx context.Context, m *toy, g *dist.Group) (Strategy, error) {
		grid, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp"})
		if err != nil {
			return nil, err
		}
		return FullyShard(ctx, m, grid)
	}
	for _, c := range []struct {
		name           string
		islands, ranks int
		o              DiLoCoOptions
		spread         func(ctx context.Context, m *toy, g *dist.Group) (Strategy, error)
	}{
		{"2", 2, 1, DiLoCoOptions{Every: 6}, nil},
		{"3 exact", 3, 1, DiLoCoOptions{Every: 4, NoDelay: true, Exact: true}, nil},
		{"3 in fragments", 3, 1, DiLoCoOptions{Every: 6, Fragments: 3}, nil},
		{"2 averaged", 2, 1, DiLoCoOptions{Every: 6, Fragments: 2, Average: true, Delay: 2}, nil},
		{"2 of 2 ranks", 2, 2, DiLoCoOptions{Every: 6, Fragments: 2}, nil},
		{"2 of 2 shards", 2, 2, DiLoCoOptions{Every: 6, Fragments: 2}, fsdp},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &archipelago{t: t, store: store.NewMemory(), islands: c.islands, ranks: c.ranks, steps: 30, options: c.o, spread: c.spread}
			ends := a.all()
			fragments := max(c.o.Fragments, 1)
			between := c.o.Every / fragments
			want := 30/between + fragments
			if 30%between == 0 {
				want-- // what was posted after the last step is not exchanged again
			}
			for i, e := range ends {
				if e.err != nil {
					t.Fatalf("island %d: %v", i, e.err)
				}
				if e.digest != ends[0].digest || e.digest == "" {
					t.Errorf("island %d ends with other parameters than island 0", i)
				}
				if e.stats.Exchanges != want || len(e.rounds) != want {
					t.Errorf("island %d has taken %d exchanges, want %d", i, e.stats.Exchanges, want)
				}
				for _, x := range e.rounds {
					if len(x.Members) != c.islands || x.Missed || x.Late != nil {
						t.Errorf("island %d: exchange %d had the members %v", i, x.Number, x.Members)
					}
				}
			}
			t.Logf("%d bytes sent and %d received in %d exchanges", ends[0].stats.SentBytes, ends[0].stats.ReceivedBytes, want)
		})
	}
}

// TestAverageOfEachStep: exchanges of each step that average exactly are what a plain optimizer does
// with averaged updates.
func TestAverageOfEachStep(t *testing.T) {
	a := &archipelago{t: t, store: store.NewMemory(), islands: 2, ranks: 1, steps: 5, options: DiLoCoOptions{Every: 1, NoDelay: true, Exact: true, Average: true}}
	ends := a.all()
	// The same by hand: each island steps alone, then the parameters are averaged.
	var models [2]*toy
	var opts [2]optim.Optimizer
	for i := range models {
		models[i] = newToy(1, width)
		opts[i] = optim.NewAdamW(nn.Parameters(models[i]), optim.AdamWOptions{LR: 0.01})
	}
	for step := range a.steps {
		for i, m := range models {
			s, err := NewSingle(m)
			if err != nil {
				t.Fatal(err)
			}
			opts[i].ZeroGrad()
			if _, err := s.Step(t.Context(), []Microbatch{toyBatch(s, int64(2*step+i))}); err != nil {
				t.Fatal(err)
			}
			opts[i].Step(nil)
		}
		others := nn.Parameters(models[1])
		for i, p := range nn.Parameters(models[0]) {
			mean := p.Data().Add(others[i].Data()).MulScalar(0.5)
			p.Data().CopyFrom(mean)
			others[i].Data().CopyFrom(mean)
		}
	}
	for i, e := range ends {
		if e.err != nil {
			t.Fatalf("island %d: %v", i, e.err)
		}
		var got, want []float32
		for _, p := range nn.Parameters(models[0]) {
			want = append(want, p.Data().Float32s()...)
		}
		for word := range strings.FieldsSeq(strings.NewReplacer("[", " ", "]", " ").Replace(e.digest)) {
			var v float32
			if _, err := fmt.Sscan(word, &v); err != nil {
				t.Fatal(err)
			}
			got = append(got, v)
		}
		worst := float32(0)
		for j := range want {
			worst = max(worst, want[j]-got[j], got[j]-want[j])
		}
		if len(got) != len(want) || worst > 1e-6 {
			t.Errorf("island %d has %d parameters, %d by hand; the greatest difference is %v", i, len(got), len(want), worst)
		}
	}
}

// TestLostIsland: an island that ends without a word does not stop the others. It comes back when
// what it has missed is not in the store any more, takes the state of another island, and takes part
// again.
func TestLostIsland(t *testing.T) {
	lost := errors.New("a fault")
	a := &archipelago{t: t, store: store.NewMemory(), islands: 3, ranks: 1, options: DiLoCoOptions{Every: 4, Fragments: 2}}
	// Without a delay all islands come to the last exchange after the same step.
	a.options.NoDelay = true
	a.options.Islands.Silence = 2 * time.Second
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test's limit"))
	defer cancel()
	var alone, together, last atomic.Int64 // exchanges of island 0 without island 2, and with it afterwards
	missed := make(chan struct{})
	// All islands end with the exchange that comes 10 after island 0 has heard that island 2 is back.
	a.enough = func(next int) bool { return last.Load() > 0 && int64(next) >= last.Load() }
	ends := make([]islandEnd, 4)
	var running sync.WaitGroup
	for at, island := range []int{0, 1, 2, 2} {
		if at == 3 {
			select {
			case <-missed:
			case <-ctx.Done():
				t.Fatal(context.Cause(ctx))
			}
		}
		b := *a
		switch at {
		case 0:
			b.took = func(x Exchange) {
				switch {
				case slices.Contains(x.Members, 2):
					if alone.Load() > 0 && together.Add(1) == 1 {
						last.Store(int64(x.Number) + 10)
					}
				case alone.Add(1) == islands.DefaultKeep+4:
					close(missed)
				}
			}
		case 2:
			b.each = func(_, step int) error {
				if step == 9 {
					return lost
				}
				return nil
			}
		}
		running.Go(func() { ends[at] = b.run(ctx, island) })
	}
	running.Wait()
	if ends[2].err == nil || !strings.Contains(ends[2].err.Error(), lost.Error()) {
		t.Errorf("the lost island ended with %v", ends[2].err)
	}
	for _, at := range []int{0, 1, 3} {
		if ends[at].err != nil {
			t.Fatalf("start %d: %v", at, ends[at].err)
		}
		if ends[at].digest != ends[0].digest {
			t.Errorf("the islands of starts 0 and %d end with different parameters", at)
		}
	}
	if alone.Load() < islands.DefaultKeep || together.Load() < 10 {
		t.Errorf("island 0 has taken %d exchanges without island 2, and %d after it came back", alone.Load(), together.Load())
	}
	first := ends[3].rounds[0].Number
	t.Logf("%d exchanges without island 2, and %d with it again; it went on with exchange %d %v", alone.Load(), together.Load(), first, ends[3].rounds)
}

// TestBadIslands: options that do not fit, and islands that are not alike, are errors that say what
// is wrong, on every island.
func TestBadIslands(t *testing.T) {
	single, err := NewSingle(newToy(1, width))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    DiLoCoOptions
		want string
	}{
		{DiLoCoOptions{}, "Every is 0 inner steps"},
		{DiLoCoOptions{Every: 10, Fragments: 4}, "choose numbers of which the second divides the first"},
		{DiLoCoOptions{Every: 10, Steps: 25}, "does not divide the 25 Steps"},
		{DiLoCoOptions{Every: 10, Fragments: 2, Delay: 6}, "want 1 to 5, or 0 for 1"},
		{DiLoCoOptions{Every: 10, Delay: 1, NoDelay: true}, "NoDelay is set"},
		{DiLoCoOptions{Every: 10, Mix: 1}, "a Mix of 1 of the island's own parameters"},
		{DiLoCoOptions{Every: 10, Average: true, LR: 0.5}, "Average needs neither"},
		{DiLoCoOptions{Every: 10, Momentum: 1}, "Momentum from 0 to below 1"},
		{DiLoCoOptions{Every: 100, Fragments: 100}, "100 fragments of"},
	} {
		if _, err := NewDiLoCo(single, nil, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		change func(island int, o *DiLoCoOptions)
		from   func(island int, d *DiLoCo, m *toy)
		want   string
	}{
		"another number of steps": {func(island int, o *DiLoCoOptions) { o.Steps = 8 + 4*island }, nil, "steps in all, every 4 steps"},
		"another H":               {func(island int, o *DiLoCoOptions) { o.Every += island }, nil, "give all islands the same"},
		"other values": {func(int, *DiLoCoOptions) {}, func(island int, _ *DiLoCo, m *toy) {
			m.Head.Weight.Data().Fill(float64(island))
		}, "begin with the same seed"},
		"alone":      {func(_ int, o *DiLoCoOptions) { o.Islands.Patience = 50 * time.Millisecond }, nil, "of which 2 did not come"},
		"not finite": {func(int, *DiLoCoOptions) {}, func(_ int, _ *DiLoCo, m *toy) { m.Head.Weight.Data().Fill(math.NaN()) }, "tokens.weight is not finite"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &archipelago{t: t, store: store.NewMemory(), islands: 2, steps: 8, options: DiLoCoOptions{Every: 4}, from: c.from, change: c.change}
			if name == "alone" {
				a.islands = 3
				a.absent = 1
			}
			failed := 0
			for i, e := range a.all() {
				if e.err != nil && strings.Contains(e.err.Error(), c.want) {
					failed++
				} else if e.err != nil {
					t.Errorf("island %d: %v, want %q", i, e.err, c.want)
				}
			}
			if failed != 2 {
				t.Errorf("%d islands say %q, want both", failed, c.want)
			}
		})
	}
}

// TestUpdatedBeforeStep: a program that runs its passes past the DiLoCo is told so.
func TestUpdatedBeforeStep(t *testing.T) {
	err := dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
		s, err := NewSingle(newToy(1, width))
		if err != nil {
			return err
		}
		d, err := NewDiLoCo(s, g, DiLoCoOptions{Every: 1, Islands: islands.Config{Store: store.NewMemory(), Islands: 1}})
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.Updated(ctx); err == nil || !strings.Contains(err.Error(), "before Step") {
			t.Errorf("Updated before Step: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
