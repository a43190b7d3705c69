// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"context"
	"sync"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// gradients are the gradients of a context on one process, by parameter.
//
// Several calls may read a parameter, and their tapes are walked at the same time. Each
// call collects a part of the gradient. The parts are added in the reverse order of the
// reads, whichever part is ready first. So the bits do not depend on timing. They are
// those of one tape, if each call reads the parameter once.
type gradients struct {
	mu      sync.Mutex
	byParam map[*nn.Parameter]*gradient
	order   []*nn.Parameter
}

// gradient is that of one parameter.
type gradient struct {
	total *tensor.Tensor
	rows  *tensor.RowGrad
	parts []*part          // in the order in which the parameter was read
	spare []*tensor.Tensor // buffers of parts that have been added
}

// part is what one forward pass adds to the gradient of a parameter. It is a leaf of the
// pass's tape.
type part struct {
	all   *gradients
	of    *gradient
	param *nn.Parameter
	buf   *tensor.Tensor
	lent  bool
	rows  *tensor.RowGrad
	state partState
}

type partState int

const (
	idle    partState = iota // not in a backward pass, or added
	pending                  // its tape is being walked
	ready                    // final, or known to be none
)

// leaf makes the next part of p's gradient.
func (gs *gradients) leaf(p *nn.Parameter) *part {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.byParam[p]
	if g == nil {
		if gs.byParam == nil {
			gs.byParam = make(map[*nn.Parameter]*gradient)
		}
		g = &gradient{}
		gs.byParam[p] = g
		gs.order = append(gs.order, p)
	}
	l := &part{all: gs, of: g, param: p}
	g.parts = append(g.parts, l)
	return l
}

// begin makes parts wait for the backward pass that begins.
func (gs *gradients) begin(parts []*part) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, l := range parts {
		l.state = pending
	}
}

// settle says that parts without a gradient get none in this backward pass.
func (gs *gradients) settle(parts []*part) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, l := range parts {
		if l.state == pending {
			l.state = ready
			l.of.fold()
		}
	}
}

// forget drops parts whose tape has been consumed.
func (gs *gradients) forget(parts []*part) {
	gone := make(map[*part]bool, len(parts))
	for _, l := range parts {
		gone[l] = true
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, g := range gs.byParam {
		kept := g.parts[:0]
		for _, l := range g.parts {
			if !gone[l] {
				kept = append(kept, l)
			}
		}
		clear(g.parts[len(kept):])
		g.parts, g.spare = kept, nil
	}
}

// of returns the gradient of p, of which at most one is set but for a table that
// was read both ways.
func (gs *gradients) get(p *nn.Parameter) (*tensor.Tensor, *tensor.RowGrad) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.byParam[p]
	if g == nil {
		return nil, nil
	}
	if g.total != nil && g.rows != nil {
		g.total.Axpy(1, g.rows.Dense())
		g.rows = nil
	}
	return g.total, g.rows
}

// params returns the parameters that have a gradient, in the order of first use.
func (gs *gradients) params() []*nn.Parameter {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	var out []*nn.Parameter
	for _, p := range gs.order {
		if g := gs.byParam[p]; g.total != nil || g.rows != nil {
			out = append(out, p)
		}
	}
	return out
}

// fold adds what is final, the part that was read last first.
func (g *gradient) fold() {
	for i := len(g.parts) - 1; i >= 0; i-- {
		l := g.parts[i]
		if l.state == pending {
			return
		}
		if l.state == idle {
			continue
		}
		l.state = idle
		if l.lent {
			if g.total == nil {
				g.total = l.buf
			} else {
				g.total.Axpy(1, l.buf)
				g.spare = append(g.spare, l.buf)
			}
			l.buf, l.lent = nil, false
		}
		if l.rows != nil {
			if g.rows != nil {
				sum := g.rows.Add(*l.rows)
				l.rows = &sum
			}
			g.rows, l.rows = l.rows, nil
		}
	}
}

// GradBuffer lends the tape a buffer; see tensor.Leaf.
func (l *part) GradBuffer() (*tensor.Tensor, bool) {
	if l.buf == nil {
		l.all.mu.Lock()
		if n := len(l.of.spare); n > 0 {
			l.buf, l.of.spare = l.of.spare[n-1], l.of.spare[:n-1]
		}
		l.all.mu.Unlock()
	}
	if l.buf == nil {
		d := l.param.Data()
		l.buf = tensor.New(d.Device(), d.DType(), d.Shape()...)
		if name := l.param.Name(); name != "" {
			l.buf.SetName(name + ".grad")
		}
	}
	l.lent = true
	return l.buf, false
}

// WantsRows reports whether the gradient is taken by rows; see tensor.RowLeaf.
func (l *part) WantsRows() bool { return l.param.Sparse }

// AddRows is called by the tape; see tensor.RowLeaf.
func (l *part) AddRows(g tensor.RowGrad) {
	if l.rows != nil {
		g = l.rows.Add(g)
	}
	l.rows = &g
}

// GradReady is called by the tape; see tensor.Leaf.
func (l *part) GradReady(context.Context) error {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	l.state = ready
	l.of.fold()
	return nil
}
