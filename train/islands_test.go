// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/parallel"
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
