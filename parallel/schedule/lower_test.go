// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// actions reads a line of actions.
func actions(t *testing.T, line string) []Action {
	var list []Action
	for word := range strings.FieldsSeq(line) {
		var a Action
		var kind rune
		if _, err := fmt.Sscanf(word, "%d%c%d", &a.Stage, &kind, &a.Microbatch); err != nil {
			t.Fatal(err)
		}
		a.Kind = Kind(slices.Index(kindNames[:], string(kind)))
		list = append(list, a)
	}
	return list
}

// TestLowerSmall: programs that can be checked by hand.
func TestLowerSmall(t *testing.T) {
	for _, c := range []struct {
		name  string
		ahead int
		want  []string
	}{
		{"1f1b", 0, []string{
			"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
			"1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
		}},
		{"1f1b", 1, []string{
			"0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1",
			"1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
		}},
		{"zbv", 0, []string{ // stages 1 and 2 lie on rank 1: no message between them
			"0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3I0 3SEND_B0 3W0 3RECV_F1 3F1 3I1 3SEND_B1 3W1 0RECV_B0 0I0 0W0 0RECV_B1 0I1 0W1",
			"1RECV_F0 1F0 2F0 2SEND_F0 1RECV_F1 1F1 2F1 2SEND_F1 2RECV_B0 2I0 2W0 1I0 1SEND_B0 1W0 2RECV_B1 2I1 2W1 1I1 1SEND_B1 1W1",
		}},
	} {
		s, err := New(c.name, 2, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		for rank, want := range c.want {
			if got := text(s.Lower(rank, c.ahead)); got != want {
				t.Errorf("%s, %d ahead: the program of rank %d is\n%s, want\n%s", c.name, c.ahead, rank, got, want)
			}
		}
	}
}

// TestLower: a program has the rank's actions in their order, and between two ranks the
// receives come in the order of the sends, none is missing, and each comes before the action
// that needs it.
func TestLower(t *testing.T) {
	eachSmall(t, func(s *Schedule, _ int) {
		for ahead := range 3 {
			sends, recvs := map[[2]int][]Action{}, map[[2]int][]Action{}
			for rank, actions := range s.Ranks {
				var computed []Action
				posted := map[Action]bool{}
				for _, a := range s.Lower(rank, ahead) {
					switch a.Kind {
					case SendForward, SendBackward:
						m := s.message(a)
						sends[[2]int{rank, m.to}] = append(sends[[2]int{rank, m.to}], m.recv)
					case RecvForward:
						recvs[[2]int{s.RankOf(a.Stage - 1), rank}] = append(recvs[[2]int{s.RankOf(a.Stage - 1), rank}], a)
						posted[a] = true
					case RecvBackward:
						recvs[[2]int{s.RankOf(a.Stage + 1), rank}] = append(recvs[[2]int{s.RankOf(a.Stage + 1), rank}], a)
						posted[a] = true
					default:
						if m := s.need(a); m.from >= 0 && m.from != rank && !posted[m.recv] {
							t.Fatalf("%s: rank %d does %v before %v", s.Name, rank, a, m.recv)
						}
						computed = append(computed, a)
					}
				}
				if !slices.Equal(computed, actions) {
					t.Fatalf("%s: the program of rank %d does %s, its order is %s", s.Name, rank, text(computed), text(actions))
				}
			}
			if len(sends) != len(recvs) {
				t.Fatalf("%s: %d pairs of ranks send, %d receive", s.Name, len(sends), len(recvs))
			}
			for pair, list := range sends {
				if !slices.Equal(list, recvs[pair]) {
					t.Fatalf("%s: rank %d sends %s, rank %d receives %s", s.Name, pair[0], text(list), pair[1], text(recvs[pair]))
				}
			}
		}
	})
}
