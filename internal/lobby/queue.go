// SPDX-License-Identifier: Apache-2.0

package lobby

import (
	"container/heap"
	"net"
	"slices"
	"time"
)

// visitor is a connection in a lobby.
type visitor struct {
	fd     int
	nc     net.Conn // nil of one that was taken from the system itself
	from   *source
	turn   uint64 // the number of connections that came before
	by     time.Time
	said   []byte
	need   int // bytes to be said before it is judged
	gone   bool
	polled bool
}

// source is what has come from one place.
type source struct {
	Source
	queue []*visitor // oldest first, with some that are gone
	num   int        // those that are not
	place int        // in the heap
}

// oldest returns who has been waiting for longest.
func (s *source) oldest() *visitor {
	for s.queue[0].gone {
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	return s.queue[0]
}

// visitors are those in a lobby.
type visitors struct {
	num     int
	came    uint64
	queue   []*visitor // oldest first, with some that are gone
	sources map[Source]*source
	crowds  crowds
	told    [len(crowdLevels)]time.Time
}

func newVisitors() *visitors { return &visitors{sources: map[Source]*source{}} }

// enter adds a connection.
func (vs *visitors) enter(v *visitor, from Source) {
	s := vs.sources[from]
	if s == nil {
		s = &source{Source: from}
		vs.sources[from] = s
	}
	vs.queue, s.queue = tidy(vs.queue, vs.num), tidy(s.queue, s.num)
	v.from, v.turn = s, vs.came
	vs.came++
	vs.num++
	held.Add(1)
	vs.queue = append(vs.queue, v)
	s.queue = append(s.queue, v)
	if s.num++; s.num == 1 {
		heap.Push(&vs.crowds, s)
	} else {
		heap.Fix(&vs.crowds, s.place)
	}
}

// tidy drops those that are gone from a queue with num others, where they are the most of
// it: behind one that stays for long as many as like may come and go.
func tidy(queue []*visitor, num int) []*visitor {
	if len(queue) <= 2*num+8 {
		return queue
	}
	return slices.DeleteFunc(queue, func(v *visitor) bool { return v.gone })
}

// leave takes a connection out.
func (vs *visitors) leave(v *visitor) {
	if v.gone {
		return
	}
	v.gone = true
	vs.num--
	held.Add(-1)
	s := v.from
	if s.num--; s.num == 0 {
		heap.Remove(&vs.crowds, s.place)
		delete(vs.sources, s.Source)
		return
	}
	heap.Fix(&vs.crowds, s.place)
}

// oldest returns who has been waiting for longest, nil if there is nobody.
func (vs *visitors) oldest() *visitor {
	for len(vs.queue) > 0 && vs.queue[0].gone {
		vs.queue[0] = nil
		vs.queue = vs.queue[1:]
	}
	if len(vs.queue) == 0 {
		return nil
	}
	return vs.queue[0]
}

// next returns who has to go to make room, nil if there is nobody.
func (vs *visitors) next() *visitor {
	if len(vs.crowds) == 0 {
		return nil
	}
	return vs.crowds[0].oldest()
}

// crowds are the sources, the one with the most visitors first, and of several the one
// with the oldest.
type crowds []*source

func (c crowds) Len() int { return len(c) }

func (c crowds) Less(i, j int) bool {
	a, b := c[i], c[j]
	return a.num > b.num || a.num == b.num && a.oldest().turn < b.oldest().turn
}

func (c crowds) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].place, c[j].place = i, j
}

// Push implements [heap.Interface].
func (c *crowds) Push(x any) {
	s := x.(*source)
	s.place = len(*c)
	*c = append(*c, s)
}

// Pop implements [heap.Interface].
func (c *crowds) Pop() any {
	old := *c
	s := old[len(old)-1]
	*c = old[:len(old)-1]
	return s
}
