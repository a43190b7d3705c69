// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text returns a chart of a simulated step: a line for each rank, with time to the right. A
// cell is as long as the shortest action. It holds the kind and the microbatch of the action
// that begins there, F3 for example, and the stage before them if a rank has several: 2F3.
// Equals signs follow an action that takes longer, dots are waiting. A chart that is wider
// than width columns goes on below.
func (s *Schedule) Text(sim *Simulation, width int) string {
	grid := newGrid(s, sim)
	head := len("rank ") + len(strconv.Itoa(s.NumRanks()-1))
	perLine := max(1, (width-head)/grid.width)
	var b strings.Builder
	for first := 0; first < grid.numCells; first += perLine {
		if first > 0 {
			b.WriteByte('\n')
		}
		for rank, cells := range grid.cells {
			line := fmt.Sprintf("rank %-*d", head-len("rank "), rank)
			for _, cell := range cells[first:min(first+perLine, grid.numCells)] {
				line += cell + strings.Repeat(" ", grid.width-utf8.RuneCountInString(cell))
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	return b.String()
}

// grid is a text chart: the cells of each rank.
type grid struct {
	cells    [][]string
	numCells int // of a rank
	width    int // of a cell, with a space
	unit     time.Duration
}

func newGrid(s *Schedule, sim *Simulation) *grid {
	g := &grid{unit: shortest(sim), width: 1}
	g.numCells = g.at(sim.Time)
	for rank, spans := range sim.Spans {
		cells := slices.Repeat([]string{" ·"}, g.numCells)
		for i, span := range spans {
			first, end := g.at(span.Start), max(g.at(span.Start)+1, g.at(span.End))
			for c := first; c < min(end, g.numCells); c++ {
				cells[c] = " ="
			}
			if first < g.numCells {
				cells[first] = " " + s.label(s.Ranks[rank][i])
				g.width = max(g.width, len(cells[first]))
			}
		}
		g.cells = append(g.cells, cells)
	}
	for _, cells := range g.cells {
		for i, c := range cells {
			if c == " =" {
				cells[i] = " " + strings.Repeat("=", g.width-1)
			}
		}
	}
	return g
}

// at returns the cell that begins next to a time.
func (g *grid) at(t time.Duration) int { return int((t + g.unit/2) / g.unit) }

// shortest returns the time of the shortest action that takes any.
func shortest(sim *Simulation) time.Duration {
	least := max(sim.Time, 1)
	for _, spans := range sim.Spans {
		for _, span := range spans {
			if d := span.End - span.Start; d > 0 {
				least = min(least, d)
			}
		}
	}
	return least
}

// label names an action of a rank.
func (s *Schedule) label(a Action) string {
	if s.NumStages == s.NumRanks() {
		return a.Kind.String() + strconv.Itoa(a.Microbatch)
	}
	return a.String()
}

// The measures of an SVG chart, in pixels.
const (
	rowHeight  = 26
	leftMargin = 64
	topMargin  = 12
	legend     = 40
	widest     = 1160 // of the time axis
)

// SVG returns a chart of a simulated step as an image: the ranks from top to bottom, time to
// the right. The colour of an action is its kind, and the number in it the microbatch. The
// second stage of a rank is darker; of more stages, each other one.
func (s *Schedule) SVG(sim *Simulation) string {
	perUnit := min(26, float64(widest)/(float64(sim.Time)/float64(shortest(sim)))) // pixels of the shortest action
	scale := perUnit / float64(shortest(sim))
	x := func(t time.Duration) float64 { return leftMargin + float64(t)*scale }
	width, height := max(x(sim.Time)+12, 640), topMargin+rowHeight*s.NumRanks()+legend

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" aria-labelledby="title text" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">
  <title id="title">Schedule %s</title>
  <desc id="text">%s work on %s of %s. The bubble is %.1f %%.</desc>
%s  <rect class="page" width="%.0f" height="%d"/>
`, width, height, width, height, s.Name, count(s.NumRanks(), "rank"), count(s.NumMicrobatches, "microbatch"), count(s.NumStages, "stage"), 100*sim.Bubble, style, width, height)
	for rank, spans := range sim.Spans {
		y := topMargin + rowHeight*rank
		fmt.Fprintf(&b, "  <text class=\"name\" x=\"12\" y=\"%d\">rank %d</text>\n", y+17, rank)
		fmt.Fprintf(&b, "  <rect class=\"wait\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>\n", leftMargin, y+2, float64(sim.Time)*scale, rowHeight-4)
		later := s.StagesOf(rank)
		for i, span := range spans {
			a := s.Ranks[rank][i]
			s.box(&b, a, slices.Index(later, a.Stage), x(span.Start), x(span.End), y)
		}
	}
	s.legend(&b, sim, topMargin+rowHeight*s.NumRanks()+12)
	b.WriteString("</svg>\n")
	return b.String()
}

// box draws an action from the column left to the column right.
func (s *Schedule) box(b *strings.Builder, a Action, local int, left, right float64, y int) {
	shade := ""
	if local%2 == 1 {
		shade = " late"
	}
	fmt.Fprintf(b, "  <rect class=\"%v%s\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>", a.Kind, shade, left, y+2, right-left, rowHeight-4)
	if label := strconv.Itoa(a.Microbatch); right-left > 7*float64(len(label)) {
		fmt.Fprintf(b, "<text class=\"say%s\" x=\"%.2f\" y=\"%d\">%s</text>", shade, (left+right)/2, y+17, label)
	}
	b.WriteByte('\n')
}

// legend draws the meaning of the colours.
func (s *Schedule) legend(b *strings.Builder, sim *Simulation, y int) {
	x := leftMargin
	var drawn [BackwardWeight + 1]bool
	for _, a := range slices.Concat(s.Ranks...) {
		drawn[a.Kind] = true
	}
	for _, e := range []struct {
		kind Kind
		text string
	}{{Forward, "forward"}, {Backward, "backward"}, {BackwardInput, "backward, input"}, {BackwardWeight, "backward, weights"}} {
		if drawn[e.kind] {
			fmt.Fprintf(b, "  <rect class=\"%v\" x=\"%d\" y=\"%d\" width=\"14\" height=\"14\"/><text class=\"side\" x=\"%d\" y=\"%d\">%s</text>\n", e.kind, x, y, x+20, y+12, e.text)
			x += 36 + 7*len(e.text)
		}
	}
	text := fmt.Sprintf("bubble %.1f %%", 100*sim.Bubble)
	if s.NumStages > s.NumRanks() {
		text = "darker: later stage · " + text
	}
	fmt.Fprintf(b, "  <text class=\"side\" x=\"%d\" y=\"%d\">%s</text>\n", x, y+12, text)
}

// style has the colours of a chart by day and by night.
const style = `  <style>
    .page { fill: #ffffff; }
    .wait { fill: #eef1f5; }
    .F { fill: #8fbcee; }
    .B { fill: #86cfa0; }
    .I { fill: #b3dfc1; }
    .W { fill: #f0c07d; }
    .F.late { fill: #2f6fb3; }
    .B.late { fill: #2b8650; }
    .I.late { fill: #4d9f6b; }
    .W.late { fill: #b8741a; }
    rect { stroke: #ffffff; stroke-width: 1; }
    .say { fill: #1c232c; font-size: 12px; text-anchor: middle; }
    .say.late { fill: #ffffff; }
    .name { fill: #1c232c; font-size: 13px; }
    .side { fill: #566273; font-size: 12.5px; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0f141a; }
      .wait { fill: #1a222c; }
      rect { stroke: #0f141a; }
      .name { fill: #e6ebf2; }
      .side { fill: #a3afbf; }
    }
  </style>
`
