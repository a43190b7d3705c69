// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// simulated returns a schedule and its step with unit costs.
func simulated(t *testing.T, name string, ranks, microbatches int) (*Schedule, *Simulation) {
	t.Helper()
	s, err := New(name, ranks, 0, microbatches)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := s.Simulate(SimulateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s, sim
}

// TestText: charts that can be checked by hand, one of which goes on below.
func TestText(t *testing.T) {
	for _, c := range []struct {
		name  string
		width int
		want  string
	}{
		{"1f1b", 80, `
rank 0 F0 F1 ·  ·  B0 == F2 B1 == ·  B2 ==
rank 1 ·  F0 B0 == F1 B1 == F2 B2 == ·  ·
`},
		{"gpipe", 25, `
rank 0 F0 F1 F2 ·  ·  ·
rank 1 ·  F0 F1 F2 B0 ==

rank 0 B0 == B1 == B2 ==
rank 1 B1 == B2 == ·  ·
`},
		{"zbv", 100, `
rank 0 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ·
rank 1 ·   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
`},
	} {
		s, sim := simulated(t, c.name, 2, 3)
		if got := s.Text(sim, c.width); got != c.want[1:] {
			t.Errorf("%s:\n%swant\n%s", c.name, got, c.want[1:])
		}
	}
}

// TestTextOfCosts: a cell is as long as the shortest action, and the others are rounded.
func TestTextOfCosts(t *testing.T) {
	s, err := New("gpipe", 1, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := s.Simulate(SimulateOptions{Cost: parts([3]time.Duration{10, 11, 14})})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Text(sim, 80), "rank 0 F0 F1 B0 == == B1 ==\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	sim, err = s.Simulate(SimulateOptions{Cost: func(Action) time.Duration { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Text(sim, 80); got != "" || sim.Bubble != 0 {
		t.Errorf("a step that takes no time: %q", got)
	}
}

// TestSVG: an image is well formed, and has a box for each action.
func TestSVG(t *testing.T) {
	for _, name := range Names() {
		s, sim := simulated(t, name, 3, 6)
		image := s.SVG(sim)
		boxes, actions := 0, 0
		for _, list := range s.Ranks {
			actions += len(list)
		}
		for d := xml.NewDecoder(strings.NewReader(image)); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
				for _, a := range e.Attr {
					if kind, _, _ := strings.Cut(a.Value, " "); a.Name.Local == "class" && strings.Contains("FBIW", kind) {
						boxes++
					}
				}
			}
		}
		kinds := 1 // boxes of the legend
		for _, word := range []string{">backward<", ">backward, input<", ">backward, weights<"} {
			kinds += strings.Count(image, word)
		}
		if boxes != actions+kinds {
			t.Errorf("%s: %d boxes for %d actions and %d colours", name, boxes, actions, kinds)
		}
	}
}
