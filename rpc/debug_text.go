// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// WriteText writes the state as text.
func (d *DebugInfo) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, d.Agent)
	if d.Addr != "" {
		fmt.Fprintf(t, " at %s", d.Addr)
	}
	fmt.Fprintf(t, ", %s after it began\n", timeText(d.Time.Sub(d.Since)))

	fmt.Fprintf(t, "\nin flight: %d\n", len(d.InFlight)+d.Unlisted)
	for _, c := range d.InFlight {
		how, left := "awaited from", "no limit"
		if c.Served {
			how = "answered to"
		}
		switch {
		case c.GivenUp:
			left = "given up, not ended"
		case c.Left > 0:
			left = timeText(c.Left) + " left"
		}
		fmt.Fprintf(t, "  %s\t%s %s\tfor %s\t%s\n", c.Method, how, c.Peer, timeText(c.Since), left)
	}
	if d.Unlisted > 0 {
		fmt.Fprintf(t, "  and %d more\n", d.Unlisted)
	}

	for _, part := range []struct {
		title, who string
		list       []MethodStats
	}{{"calls made", "at", d.Called}, {"methods served", "", d.Served}} {
		fmt.Fprintf(t, "\n%s:\n  method\t%s\tin flight\tcalls\tfailed\tsent\treceived\tmean\thalf within\t99 %% within\n", part.title, part.who)
		for _, m := range part.list {
			if m.Calls == 0 && m.InFlight == 0 {
				continue
			}
			fmt.Fprintf(t, "  %s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", m.Method, m.Peer, m.InFlight, m.Calls, m.Failures,
				sizeText(m.Sent), sizeText(m.Received), timeText(m.Mean), timeText(m.P50), timeText(m.P99))
		}
	}

	fmt.Fprintf(t, "\nreferences: %d values here, %d held to values elsewhere\n", d.References.Values, d.References.Held)
	for _, name := range slices.Sorted(maps.Keys(d.References.By)) {
		fmt.Fprintf(t, "  %s has %d to values here\n", name, d.References.By[name])
	}

	fmt.Fprintf(t, "\npeers:\n")
	for _, p := range d.Peers {
		how := p.Transport
		if how == "" {
			how = "not connected"
		}
		fmt.Fprintf(t, "  %d\t%s\t%s\t%s\n", p.Rank, p.Name, how, p.Addr)
	}
	return t.Flush()
}
