// SPDX-License-Identifier: Apache-2.0

package rpc

// follower is a function that runs when something has happened that happens once.
type follower struct {
	run func()
	at  int // in the list, -1 when it is in none
}

// followers are those of one event. Who has the event locks.
type followers struct{ list []*follower }

func (l *followers) add(run func()) *follower {
	w := &follower{run, len(l.list)}
	l.list = append(l.list, w)
	return w
}

// remove takes one off the list, if it is still there.
func (l *followers) remove(w *follower) {
	if w == nil || w.at < 0 {
		return
	}
	end := len(l.list) - 1
	last := l.list[end]
	l.list[w.at], last.at = last, w.at
	l.list[end] = nil
	l.list, w.at = l.list[:end], -1
}

// take returns all and empties the list.
func (l *followers) take() []*follower {
	list := l.list
	l.list = nil
	for _, w := range list {
		w.at = -1
	}
	return list
}
