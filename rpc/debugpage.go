// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"maps"
	"slices"

	"github.com/cohort-ml/cohort/internal/markup"
)

// debugPage is the page of [Agent.DebugHandler].
func debugPage(d DebugInfo) *markup.Page {
	p := new(markup.Page)
	p.Put(`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>%s</title>
<style>
body { font: 14px sans-serif; margin: 2em; color: #222 }
table { border-collapse: collapse; margin: 0 0 2em }
th, td { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #aaa; font-weight: normal; color: #666 }
.n { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: 12px; color: #666 }
</style>
<h1>%s</h1>
<p>`, d.Agent, d.Agent)
	if d.Addr != "" {
		p.Put("Listens at %s. ", d.Addr)
	}
	p.Put("Counts since %s.</p>\n", d.Since.Format("2006-01-02 15:04:05"))
	putInFlight(p, d)
	p.Put(`<h2>Calls made</h2>
<table>
<tr><th>method<th>peer<th class="n">in flight<th class="n">calls<th class="n">failures<th class="n">sent<th class="n">received<th class="n">mean<th class="n">half within<th class="n">99 %% within</tr>
`)
	for _, m := range d.Called {
		p.Put("<tr><td>%s<td>%s", m.Method, m.Peer)
		putNumbers(p, m.InFlight, m.Calls, m.Failures, sizeText(m.Sent), sizeText(m.Received), timeText(m.Mean), timeText(m.P50), timeText(m.P99))
	}
	p.Put(`</table>

<h2>Methods served</h2>
<table>
<tr><th>method<th class="n">in flight<th class="n">calls<th class="n">failures<th class="n">received<th class="n">sent<th class="n">mean<th class="n">half within<th class="n">99 %% within</tr>
`)
	for _, m := range d.Served {
		p.Put("<tr><td>%s<br><code>%s</code>", m.Method, m.Types)
		putNumbers(p, m.InFlight, m.Calls, m.Failures, sizeText(m.Received), sizeText(m.Sent), timeText(m.Mean), timeText(m.P50), timeText(m.P99))
	}
	p.Put("</table>\n\n<h2>References</h2>\n<p>%s values here, %s references held to values elsewhere.", d.References.Values, d.References.Held)
	for _, name := range slices.Sorted(maps.Keys(d.References.By)) {
		p.Put(" %s has %s to values here.", name, d.References.By[name])
	}
	p.Put(`</p>

<h2>Peers</h2>
<table>
<tr><th class="n">rank<th>name<th>transport<th>address</tr>
`)
	for _, peer := range d.Peers {
		transport := peer.Transport
		if transport == "" {
			transport = "not connected"
		}
		p.Put("<tr><td class=\"n\">%s<td>%s<td>%s<td>%s</tr>\n", peer.Rank, peer.Name, transport, peer.Addr)
	}
	p.Put("</table>\n</html>\n")
	return p
}

// putInFlight adds the calls that are under way.
func putInFlight(p *markup.Page, d DebugInfo) {
	p.Put(`
<h2>In flight</h2>
<table>
<tr><th>method<th>peer<th><th class="n">for<th class="n">time left</tr>
`)
	for _, c := range d.InFlight {
		state, left := "is awaited", ""
		switch {
		case c.GivenUp:
			state = "given up, not ended"
		case c.Served:
			state = "is answered"
		}
		if c.Left != 0 {
			left = timeText(c.Left)
		}
		p.Put("<tr><td>%s<td>%s<td>%s", c.Method, c.Peer, state)
		putNumbers(p, timeText(c.Since), left)
	}
	if len(d.InFlight) == 0 {
		p.Put("<tr><td>none</tr>\n")
	}
	if d.Unlisted > 0 {
		p.Put("<tr><td>and %s more</tr>\n", d.Unlisted)
	}
	p.Put("</table>\n\n")
}

// putNumbers ends a row of a table.
func putNumbers(p *markup.Page, values ...any) {
	for _, v := range values {
		p.Put("<td class=\"n\">%s", v)
	}
	p.Put("</tr>\n")
}
