// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// Filter is what is known of a host's firewall and of what shapes its traffic; empty where
// the programs nft and tc are missing, or the user may not ask them.
type Filter struct {
	// Input and Output are chains of nftables that see packets of this host, such as
	// "inet filter input".
	Input  []string `json:"input,omitempty"`
	Output []string `json:"output,omitempty"`
	// Shapers are interfaces and what delays or drops their packets, such as "eth0 tbf".
	Shapers []string `json:"shapers,omitempty"`
}

func collectFilter(ctx context.Context) (f Filter) {
	f.Input, f.Output = parseChains(output(ctx, "nft", "list", "chains"))
	f.Shapers = parseShapers(output(ctx, "tc", "qdisc", "show"))
	return f
}

// output returns what a program of the system prints, "" if it cannot run.
func output(ctx context.Context, name string, args ...string) string {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // which a user's PATH may lack
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// parseChains reads the list of chains that nft prints.
func parseChains(text string) (input, output []string) {
	table, chain := "", ""
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		switch {
		case len(w) >= 3 && w[0] == "table":
			table = w[1] + " " + w[2]
		case len(w) >= 2 && w[0] == "chain":
			chain = w[1]
		case len(w) >= 4 && w[0] == "type" && w[1] == "filter" && strings.Contains(line, " hook input "):
			input = append(input, table+" "+chain)
		case len(w) >= 4 && w[0] == "type" && w[1] == "filter" && strings.Contains(line, " hook output "):
			output = append(output, table+" "+chain)
		}
	}
	return input, output
}

// parseShapers reads the list that tc prints: qdisc tbf 8001: dev eth0 root …
func parseShapers(text string) (out []string) {
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 6 || w[0] != "qdisc" || w[3] != "dev" || w[5] != "root" {
			continue
		}
		switch w[1] {
		case "tbf", "netem", "htb", "hfsc", "cake", "cbq":
			out = append(out, w[4]+" "+w[1])
		}
	}
	return out
}

// shaper returns the command that removes what shapes an interface, "" if nothing does.
func (f *Facts) shaper(device string) string {
	for _, s := range f.Filter.Shapers {
		if name, _, _ := strings.Cut(s, " "); name == device {
			return "tc qdisc del dev " + fingerprint.Quote(name) + " root"
		}
	}
	return ""
}

// quoteAll writes the words of a text for a shell.
func quoteAll(text string) string {
	words := strings.Fields(text)
	for i := range words {
		words[i] = fingerprint.Quote(words[i])
	}
	return strings.Join(words, " ")
}
