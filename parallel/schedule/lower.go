// SPDX-License-Identifier: Apache-2.0

package schedule

// Lower returns the program of a rank: its actions, with the messages that it exchanges with
// other ranks. A send comes directly after the action that computes its value. A receive
// comes before the action that needs the value, and ahead actions earlier: with 1 the next
// value arrives while the rank computes. With 0 no value waits on the rank, and each
// receive starts when the rank has nothing else to do.
//
// All sends and receives are asynchronous. The receives from one rank are posted in the
// order of that rank's sends to this one, because messages have no tags. So a receive is
// posted still earlier if the sender's next value is needed first. A value that a stage
// hands to a stage of its own rank is no message.
func (s *Schedule) Lower(rank, ahead int) []Action {
	in := s.inbox(rank)
	program := make([]Action, 0, 3*len(s.Ranks[rank]))
	posted := 0 // actions whose receives are in the program
	for i, a := range s.Ranks[rank] {
		for posted < len(s.Ranks[rank]) && posted <= i+ahead {
			program = in.post(program, s.need(s.Ranks[rank][posted]))
			posted++
		}
		program = append(program, a)
		if m := s.gives(a); m.from >= 0 && m.to != m.from {
			program = append(program, m.send)
		}
	}
	return program
}

// message is a value that one stage hands to another.
type message struct {
	from, to   int // ranks; from is -1 if there is no message
	send, recv Action
}

var noMessage = message{from: -1}

// gives returns the message that an action computes: the output of a stage, or the gradient
// of its input.
func (s *Schedule) gives(a Action) message {
	switch {
	case a.Kind == Forward && a.Stage < s.NumStages-1:
		return s.message(Action{a.Stage, a.Microbatch, SendForward})
	case (a.Kind == Backward || a.Kind == BackwardInput) && a.Stage > 0:
		return s.message(Action{a.Stage, a.Microbatch, SendBackward})
	}
	return noMessage
}

// need returns the message that an action waits for.
func (s *Schedule) need(a Action) message {
	switch {
	case a.Kind == Forward && a.Stage > 0:
		return s.message(Action{a.Stage - 1, a.Microbatch, SendForward})
	case (a.Kind == Backward || a.Kind == BackwardInput) && a.Stage < s.NumStages-1:
		return s.message(Action{a.Stage + 1, a.Microbatch, SendBackward})
	}
	return noMessage
}

// message returns the message that a send starts.
func (s *Schedule) message(send Action) message {
	recv := Action{send.Stage + 1, send.Microbatch, RecvForward}
	if send.Kind == SendBackward {
		recv = Action{send.Stage - 1, send.Microbatch, RecvBackward}
	}
	return message{from: s.RankOf(send.Stage), to: s.RankOf(recv.Stage), send: send, recv: recv}
}

// inbox is what comes to a rank from its peers, in the order in which they send it.
type inbox struct {
	rank  int
	peers []int
	next  [][]Action // by peer: the receives that are not posted
	left  map[Action]bool
}

// inbox returns the messages to a rank. Only neighbours send: those that have a stage beside
// one of the rank's.
func (s *Schedule) inbox(rank int) *inbox {
	in := &inbox{rank: rank, left: map[Action]bool{}}
	for _, stage := range s.StagesOf(rank) {
		for _, beside := range []int{stage - 1, stage + 1} {
			if beside >= 0 && beside < s.NumStages {
				in.add(s, s.RankOf(beside))
			}
		}
	}
	return in
}

// add lists the messages of a peer.
func (in *inbox) add(s *Schedule, peer int) {
	if peer == in.rank || in.peer(peer) >= 0 {
		return
	}
	var recvs []Action
	for _, a := range s.Ranks[peer] {
		if m := s.gives(a); m.from == peer && m.to == in.rank {
			recvs = append(recvs, m.recv)
			in.left[m.recv] = true
		}
	}
	in.peers, in.next = append(in.peers, peer), append(in.next, recvs)
}

// peer returns the index of a peer, -1 if it is none.
func (in *inbox) peer(rank int) int {
	for i, p := range in.peers {
		if p == rank {
			return i
		}
	}
	return -1
}

// post appends the receives up to that of a message, if it is not posted.
func (in *inbox) post(program []Action, m message) []Action {
	if m.from < 0 || m.from == in.rank || !in.left[m.recv] {
		return program
	}
	next := &in.next[in.peer(m.from)]
	for in.left[m.recv] {
		recv := (*next)[0]
		*next = (*next)[1:]
		delete(in.left, recv)
		program = append(program, recv)
	}
	return program
}
