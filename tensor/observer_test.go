// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// seen writes down what it is told. It numbers the values by notes.
type seen struct {
	t    *testing.T
	log  []string
	next int
}

func (s *seen) id(t *Tensor) string {
	switch {
	case t == nil:
		return "-"
	case t.Note() == nil:
		return "?"
	}
	return fmt.Sprint(t.Note().Value)
}

func (s *seen) name(t *Tensor) string {
	s.next++
	t.SetNote(&Note{Value: s.next})
	return s.id(t)
}

func (s *seen) ids(ts []*Tensor) string {
	var out []string
	for _, t := range ts {
		out = append(out, s.id(t))
	}
	return strings.Join(out, ",")
}

func (s *seen) Computed(op Operation) {
	from := s.ids(op.Operands)
	s.log = append(s.log, fmt.Sprintf("%s=%s(%s)%v", s.name(op.Out), op.Name, from, op.Dims))
}

func (s *seen) Recorded(op string, out *Tensor, inputs []*Tensor) {
	s.log = append(s.log, fmt.Sprintf("%s<%s>%s", s.id(out), op, s.ids(inputs)))
}

func (s *seen) Watched(out, _ *Tensor, leaf Leaf) {
	s.log = append(s.log, fmt.Sprintf("%s=watch %v", s.name(out), leaf != nil))
}

func (s *seen) Backward(losses []*Tensor) { s.log = append(s.log, "backward "+s.ids(losses)) }

func (s *seen) want(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.log, want) {
		s.t.Errorf("the observer saw\n%s\nwant\n%s", strings.Join(s.log, "\n"), strings.Join(want, "\n"))
	}
	s.log = nil
}

// TestObserver: an observer sees results, views, constants, ids, fused and
// recorded operations, both runs of Recompute, and operations of others.
func TestObserver(t *testing.T) {
	s := &seen{t: t}
	tp := NewTape(true)
	defer tp.Close()
	tp.Observe(s)
	w := tp.Watch(Full(1, 4, 3), &collector{shape: []int{4, 3}})
	ids := tp.Const(FromInt64([]int64{1, 0}))
	s.want("1=watch true", "2=watch false")

	rows := Embedding(w, ids) // nothing is reshaped: [2, 3]
	s.want("3=embedding(1,2)[]", "3<embedding>1")
	y := Linear(rows, w, nil)
	s.want("4=linear(3,1,-)[]", "4<linear>3,1,-")
	y.GtScalar(0)
	s.want("5=gt(4)[]")
	narrow := y.Narrow(1, 0, 2).Detach()
	narrow.Add(y.Select(1, 0).Unsqueeze(1))
	s.want("6=narrow(4)[1]", "6<narrow>4", "7=narrow(4)[1]", "7<narrow>4", "8=squeeze(7)[1]", "8<squeeze>7",
		"9=unsqueeze(8)[1]", "9<unsqueeze>8", "10=add(6,9)[]", "10<add>-,9")
	Record("all reduce", Full(2, 2, 4), []*Tensor{y}, nil, func(_ context.Context, g *Tensor) ([]*Tensor, error) {
		return []*Tensor{g}, nil
	})
	s.want("11=watch false", "12=all reduce(4)[]", "12<all reduce>4")
}

// TestObserverRecompute: the first run is seen as if it were recorded, its results
// keep their notes, and the second run is seen again.
func TestObserverRecompute(t *testing.T) {
	s := &seen{t: t}
	tp := NewTape(true)
	defer tp.Close()
	tp.Observe(s)
	x := tp.Watch(Full(1, 2), &collector{shape: []int{2}})
	y := tp.Recompute([]*Tensor{x}, func(in []*Tensor) []*Tensor { return []*Tensor{in[0].Exp()} })[0]
	s.want("1=watch true", "2=exp(1)[]", "2<exp>1")
	loss := y.Sum()
	s.want("3=sum(2)[]", "3<sum>2", "4=reshape(3)[]", "4<reshape>3")
	tp.BeforeBackward(func(context.Context) error { s.want("backward 4"); return nil })
	if err := loss.Backward(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.log, func(l string) bool { return strings.HasSuffix(l, "=exp(1)[]") }) {
		t.Errorf("the second run was not seen: %q", s.log)
	}
}

// TestOneObserver: a second one is refused, and Close ends it.
func TestOneObserver(t *testing.T) {
	tp := NewTape(true)
	tp.Observe(&seen{t: t})
	mustFail(t, "observer already", func() { tp.Observe(&seen{t: t}) })
	tp.Close()
	if tp.Observer() != nil {
		t.Error("a closed tape has an observer")
	}
}
