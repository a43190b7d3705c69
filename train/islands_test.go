// SPDX-License-Identifier: Apache-2.0

package train

import (
	"strings"
	"testing"
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
