// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRankTaken: who asks for the rank of a node that lives is refused, and who asks
// for that of one that is dead gets it: it may be the same, started again at once.
func TestRankTaken(t *testing.T) {
	for _, alive := range []bool{true, false} {
		set := Settings{Job: "job", Min: 2, Max: 2, MaxRestarts: 1, Timing: DefaultTiming()}
		s := &State{Version: 1, Born: someID, Job: set.Job, Min: set.Min, Max: set.Max, MaxRestarts: set.MaxRestarts, Lost: set.Timing.Lost(), Phase: Running, Round: 1, Arrived: 2}
		var cards []*Card
		for i := range 3 {
			node := Node{ID: fmt.Sprintf("%016x", i), Host: fmt.Sprint("host", i), Addr: "10.0.0.1", NumRanks: 1, Rank: min(i, 1)}
			c := &Card{Node: node, Min: set.Min, Max: set.Max, MaxRestarts: set.MaxRestarts, Lost: s.Lost, Round: 1, Status: Busy}
			if cards = append(cards, c); i < 2 {
				s.Members = append(s.Members, node)
			}
		}
		again := cards[2]
		again.Round, again.Status = 0, Ready
		d, list := newDecider(&set), []string{cards[0].Node.ID, cards[1].Node.ID, again.Node.ID}
		now := time.Now()
		for range 100 {
			now = now.Add(set.Timing.Beat)
			var seen []Card
			for i, c := range cards {
				if i != 1 || alive {
					c.Beat++
					if c.Seen = s.Version; s.Phase == Gathering {
						c.Status = Ready
					}
				}
				seen = append(seen, *c)
			}
			d.arrivals(s, list)
			d.look(now, seen)
			if next := d.decide(now, s, len(list)); next != nil {
				s = next
			}
		}
		if alive && (len(s.Refused) != 1 || !strings.Contains(s.Refused[0].Text, "--node-rank 1 is that of host1") || s.Round != 1) {
			t.Errorf("the node lives: %+v", s)
		}
		if !alive && (s.Round != 2 || s.Restarts != 1 || find(s.Members, again.Node.ID) != 1) {
			t.Errorf("the node is dead: %+v", s)
		}
	}
}

// TestFinalFailure: ranks that would fail again end the job though restarts are left,
// whenever their node says so, but not where a node has gone too: others go on then.
func TestFinalFailure(t *testing.T) {
	for _, c := range []struct {
		first, final, leaves bool // whether the first card of the failure says it; any; and a node leaves with it
		restarts             int
		closed               bool
	}{
		{true, true, false, 1, true},
		{false, true, false, 1, true}, // known once the program had printed all
		{false, false, false, 1, false},
		{true, true, true, 0, false},
	} {
		set := Settings{Job: "job", Min: 1, Max: 2, MaxRestarts: 3, Timing: DefaultTiming()}
		s := &State{Version: 1, Born: someID, Job: set.Job, Min: set.Min, Max: set.Max, MaxRestarts: set.MaxRestarts, Lost: set.Timing.Lost(), Phase: Running, Round: 1, Arrived: 2}
		var cards []*Card
		var list []string
		for i := range 2 {
			node := Node{ID: fmt.Sprintf("%016x", i), Host: fmt.Sprint("host", i), Addr: "10.0.0.1", NumRanks: 1, Rank: -1}
			cards = append(cards, &Card{Node: node, Min: set.Min, Max: set.Max, MaxRestarts: set.MaxRestarts, Lost: s.Lost, Round: 1, Status: Busy})
			s.Members, list = append(s.Members, node), append(list, node.ID)
		}
		d, now := newDecider(&set), time.Now()
		for i := range 20 {
			now = now.Add(set.Timing.Beat)
			switch {
			case i == 2:
				cards[1].Status, cards[1].Text, cards[1].Final = Failed, "rank 1 has no data", c.first
				if c.leaves {
					cards[0].Status = Left
				}
			case s.Phase == Gathering:
				for k, card := range cards {
					if card.Status != Left {
						card.Status, card.Final = Ready, c.final && k == 1
					}
				}
			}
			var seen []Card
			for _, card := range cards {
				card.Beat++
				card.Seen = s.Version
				seen = append(seen, *card)
			}
			d.arrivals(s, list)
			d.look(now, seen)
			if next := d.decide(now, s, len(list)); next != nil {
				s = next
			}
			if s.Phase != Gathering && i > 2 {
				break
			}
		}
		if closed := s.Phase == Closed; closed != c.closed || s.Restarts != c.restarts || closed && !strings.Contains(s.Text, "rank 1 has no data; it would happen again") {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}

// TestForgotten: only where every node that came is node 0 was --node-rank
// likely forgotten.
func TestForgotten(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  bool
	}{{[]int{0}, true}, {[]int{1}, false}, {[]int{0, 2}, false}, {[]int{-1}, false}, {nil, false}} {
		var nodes []Node
		for _, r := range c.ranks {
			nodes = append(nodes, Node{Rank: r})
		}
		if got := forgotten(nodes) != ""; got != c.want {
			t.Errorf("of node ranks %v: %v, want %v", c.ranks, got, c.want)
		}
	}
}
