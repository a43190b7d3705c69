// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/islands"
)

// TestIslandSettings gives settings of islands that do not go together. They are refused before a
// rank starts.
func TestIslandSettings(t *testing.T) {
	for _, c := range []struct {
		change func(*SharedConfig)
		want   string
	}{
		{func(*SharedConfig) {}, ""},
		{func(c *SharedConfig) { c.Islands = 0 }, "--diloco needs --islands, the number of islands"},
		{func(c *SharedConfig) { c.IslandsAt = "" }, "--diloco needs --islands-at"},
		{func(c *SharedConfig) { c.IslandsAt = "localhost" }, `--islands-at is "localhost": want the HOST:PORT`},
		{func(c *SharedConfig) { c.IslandsAt = "127.0.0.1:0" }, `--islands-at is "127.0.0.1:0": want the HOST:PORT`},
		{func(c *SharedConfig) { c.IslandsAt = "tcp://127.0.0.1:29500" }, "want the HOST:PORT"},
		{func(c *SharedConfig) { c.Island = 2 }, "--island is 2, want 0 to 1"},
		{func(c *SharedConfig) { c.ZeRO1 = true }, "leave --zero1 out"},
		{func(c *SharedConfig) { c.Hook = "bf16" }, "leave --hook out"},
		{func(c *SharedConfig) { c.TP = 2 }, "leave --tp out"},
	} {
		cfg := SharedConfig{IslandConfig: islandDefaults()}
		cfg.DiLoCo, cfg.Islands, cfg.IslandsAt = 10, 2, "127.0.0.1:29500"
		c.change(&cfg)
		err := cfg.validateIslands("lm")
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestTookPart: a run says which islands took part whenever that has changed, also if one was lost
// before the first exchange.
func TestTookPart(t *testing.T) {
	for _, c := range []struct {
		members, before []int
		want            string
	}{
		{[]int{0, 1, 2}, nil, ""},
		{[]int{1}, nil, "exchange 4: island 1 took part, of 3"},
		{[]int{0, 2}, []int{0, 1, 2}, "exchange 4: islands 0, 2 took part, before islands 0, 1, 2"},
		{[]int{0, 2}, []int{0, 2}, ""},
		{[]int{0, 1, 2}, []int{0, 2}, "exchange 4: islands 0, 1, 2 took part, before islands 0, 2"},
	} {
		if got := tookPart(parallel.Exchange{Number: 4, Members: c.members}, c.before, 3); got != c.want {
			t.Errorf("%v after %v: %q, want %q", c.members, c.before, got, c.want)
		}
	}
}

// TestOuterOfOlderCheckpoint: the newest checkpoint is damaged in a way that only its reader sees, and
// the one before it is of a run without islands. The run goes on from that one, and says once that the
// outer optimizer begins anew. So does one whose newest checkpoint is of a run without islands.
func TestOuterOfOlderCheckpoint(t *testing.T) {
	for _, damaged := range []bool{true, false} {
		f := newFitting(t)
		onIsland := func(_ int, task *Task[points], _ *Options) {
			task.Strategy = func(_ context.Context, model any, axes Axes) (parallel.Strategy, error) {
				inner, err := parallel.NewSingle(model)
				if err != nil {
					return nil, err
				}
				return parallel.NewDiLoCo(inner, axes.World, parallel.DiLoCoOptions{Every: 2, Islands: islands.Config{Store: store.NewMemory(), Islands: 1}})
			}
		}
		steps := func(n int, set func(int, *Task[points], *Options)) {
			t.Helper()
			f.set = func(rank int, task *Task[points], o *Options) {
				o.Steps, o.SaveEvery, o.Keep, o.Best = n, 4, 4, false
				if set != nil {
					set(rank, task, o)
				}
			}
			if told, err := f.run(t, 1); err != nil {
				t.Fatal(told, err)
			}
		}
		steps(4, nil)
		want := "the checkpoint of step 4 has no state of it"
		if damaged {
			steps(8, onIsland)
			damageLast(t, checkpoint.Path(f.out, 8))
			want = "the checkpoint of step 4 is older than the one that was to be loaded"
		}
		steps(12, onIsland)
		said := strings.Join(f.log.notices, "\n")
		if n := strings.Count(said, "the outer optimizer of the islands begins anew: "); n != 1 || !strings.Contains(said, want) || f.log.start.FirstStep != 4 {
			t.Errorf("damaged %v: it goes on from step %d and says %q, want %q once", damaged, f.log.start.FirstStep, said, want)
		}
	}
}
