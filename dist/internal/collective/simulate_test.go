// SPDX-License-Identifier: Apache-2.0

package collective

import "fmt"

// number is what simulated ranks reduce: integers for what is right, floats for
// the order in which they are added.
type number interface{ int64 | float32 }

// simulation runs the plans of all ranks without time: a rank does whatever it
// can, until nobody can do anything.
type simulation[E number] struct {
	plans   []Plan
	in, out [][]E // by rank
	// room lets sends go on their way as soon as they may; without, a send
	// waits until its receiver comes to it, and reads what is there then.
	room bool
	// careful checks that nothing is written that a send may still have to read.
	careful bool

	work           [][]E
	sent, received []int // by rank
	steps          []int
	links          map[way][]message[E]
	known          [][][]int32 // by rank and receive: sends known to have ended, by rank
}

type way struct{ from, to int }

type message[E number] struct {
	data  []E
	index int // among its sender's sends
}

// view returns elements of a rank.
func (s *simulation[E]) view(r int, v Range) []E {
	p := &s.plans[r]
	switch in, work := p.NumOut, p.NumOut+p.NumIn; {
	case v.Hi <= in:
		return s.out[r][v.Lo:v.Hi]
	case v.Hi <= work:
		return s.in[r][v.Lo-in : v.Hi-in]
	default:
		return s.work[r][v.Lo-work : v.Hi-work]
	}
}

func (s *simulation[E]) run() error {
	n := len(s.plans)
	s.links = map[way][]message[E]{}
	s.sent, s.received, s.steps = make([]int, n), make([]int, n), make([]int, n)
	s.work, s.known = make([][]E, n), make([][][]int32, n)
	for r := range s.plans {
		p := &s.plans[r]
		if err := p.Check(r, n, 1); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
		s.work[r] = make([]E, p.Work)
		if s.careful {
			s.known[r] = [][]int32{make([]int32, n)}
		}
		if err := s.doSteps(r); err != nil {
			return err
		}
	}
	for moved := true; moved; {
		moved = false
		for r := range s.plans {
			for s.room && s.maySend(r) {
				s.send(r)
				moved = true
			}
			came, err := s.receive(r)
			if err != nil {
				return err
			}
			moved = moved || came
		}
	}
	left := 0
	for _, l := range s.links {
		left += len(l)
	}
	for r := range s.plans {
		p := &s.plans[r]
		if s.sent[r] != len(p.Sends) || s.received[r] != len(p.Recvs) || left != 0 {
			return fmt.Errorf("rank %d stands still after %d of %d sends and %d of %d receives; %d messages are left over",
				r, s.sent[r], len(p.Sends), s.received[r], len(p.Recvs), left)
		}
		if s.steps[r] != len(p.Steps) {
			return fmt.Errorf("rank %d did %d of %d steps", r, s.steps[r], len(p.Steps))
		}
	}
	return nil
}

func (s *simulation[E]) maySend(r int) bool {
	p := &s.plans[r]
	return s.sent[r] < len(p.Sends) && s.received[r] >= p.Sends[s.sent[r]].After
}

func (s *simulation[E]) send(r int) {
	i := s.sent[r]
	v := &s.plans[r].Sends[i]
	w := way{r, v.To}
	s.links[w] = append(s.links[w], message[E]{append([]E(nil), s.view(r, v.Range)...), i})
	s.sent[r]++
}

// receive does a rank's next receive, if what it wants is there.
func (s *simulation[E]) receive(r int) (bool, error) {
	p, k := &s.plans[r], s.received[r]
	if k == len(p.Recvs) {
		return false, nil
	}
	v := &p.Recvs[k]
	if !s.room && s.maySend(v.From) && s.plans[v.From].Sends[s.sent[v.From]].To == r {
		s.send(v.From)
	}
	came := s.links[way{v.From, r}]
	if len(came) == 0 {
		return false, nil
	}
	m := came[0]
	s.links[way{v.From, r}] = came[1:]
	if len(m.data) != v.Len() {
		return false, fmt.Errorf("rank %d, receive %d from %d: %d elements came, want %d", r, k, v.From, len(m.data), v.Len())
	}
	if err := s.learn(r, v, m.index); err != nil {
		return false, err
	}
	to := s.view(r, v.Range)
	for i, x := range m.data {
		if v.Reduce {
			x += to[i]
		}
		to[i] = x
	}
	s.received[r]++
	return true, s.doSteps(r)
}

// learn takes over what the sender of a message knew, and checks that what the
// message overwrites has gone.
func (s *simulation[E]) learn(r int, v *Recv, index int) error {
	if !s.careful {
		return nil
	}
	after := 0
	for _, e := range s.plans[v.From].Sends[:index+1] {
		after = max(after, e.After)
	}
	now := append([]int32(nil), s.known[r][s.received[r]]...)
	for q, k := range s.known[v.From][after] {
		now[q] = max(now[q], k)
	}
	now[v.From] = max(now[v.From], int32(index))
	if err := s.unread(r, v.Range, s.received[r], int(now[r])); err != nil {
		return fmt.Errorf("receive %d %w", s.received[r], err)
	}
	now[v.From] = max(now[v.From], int32(index+1))
	s.known[r] = append(s.known[r], now)
	return nil
}

// unread returns an error if a send that may start after so many receives reads
// from a range and is not known to have ended.
func (s *simulation[E]) unread(r int, w Range, received, ended int) error {
	for i, v := range s.plans[r].Sends {
		if i >= ended && v.After <= received && v.Lo < w.Hi && w.Lo < v.Hi {
			return fmt.Errorf("of rank %d overwrites %v, which send %d of %v to rank %d may still have to read", r, w, i, v.Range, v.To)
		}
	}
	return nil
}

func (s *simulation[E]) doSteps(r int) error {
	p := &s.plans[r]
	for s.steps[r] < len(p.Steps) && p.Steps[s.steps[r]].After <= s.received[r] {
		v := &p.Steps[s.steps[r]]
		if v.After < s.received[r] {
			return fmt.Errorf("rank %d: step %d is out of order", r, s.steps[r])
		}
		if s.careful {
			if err := s.unread(r, v.Range, v.After-1, int(s.known[r][v.After][r])); err != nil {
				return fmt.Errorf("step %d %w", s.steps[r], err)
			}
		}
		s.do(r, v)
		s.steps[r]++
	}
	return nil
}

func (s *simulation[E]) do(r int, v *Step) {
	sum := append([]E(nil), s.view(r, v.source(0))...)
	for j := 1; j < v.Num; j++ {
		for i, x := range s.view(r, v.source(j)) {
			sum[i] += x
		}
	}
	copy(s.view(r, v.Range), sum)
}
