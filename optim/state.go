// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// StateError lists everything in which a saved state is not that of an
// optimizer, as when groups or options differ.
type StateError struct {
	Missing   []string // the optimizer has them, the saved state does not
	Extra     []string // the saved state has them, the optimizer does not
	Misshapen []string // names with both shapes and dtypes
}

func (e *StateError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "optim: the saved state does not fit (%d missing, %d extra, %d misshapen): load it into the optimizer that it was saved from",
		len(e.Missing), len(e.Extra), len(e.Misshapen))
	for _, l := range []struct {
		what  string
		names []string
	}{{"missing  ", e.Missing}, {"extra    ", e.Extra}, {"misshapen", e.Misshapen}} {
		for _, name := range l.names {
			fmt.Fprintf(&b, "\n  %s  %s", l.what, name)
		}
	}
	return b.String()
}

// nameOf returns what messages call a parameter: its name, or its position.
func nameOf(p *nn.Parameter, position int) string {
	if p.Name() == "" {
		return fmt.Sprintf("param %d", position)
	}
	return p.Name()
}

// wantNames panics unless every parameter has a name of its own, for a state is
// kept by names.
func wantNames(op string, params []*nn.Parameter) {
	const how = ": name all parameters of the optimizer by walking them as one model, nn.Parameters(&struct{A, B *Net}{a, b})"
	at := make(map[string]int, len(params))
	for i, p := range params {
		if p.Name() == "" {
			fail(op, p, i, "the parameter has no name to keep its state by"+how)
		}
		if first, found := at[p.Name()]; found {
			fail(op, p, i, "params %d and %d have the same name, as those of two models that were walked one by one have"+how, first, i)
		}
		at[p.Name()] = i
	}
}

// LoadState copies a saved state into that of an optimizer or an average (what
// State returns). If names, shapes or dtypes differ it changes nothing and
// returns a [StateError]. From a file, use checkpoint.LoadTensors.
func LoadState(into, saved nn.NamedTensors) error {
	have := make(map[string]*tensor.Tensor, len(saved))
	for _, s := range saved {
		have[s.Name] = s.Tensor
	}
	e := &StateError{}
	wanted := make(map[string]bool, len(into))
	for _, w := range into {
		wanted[w.Name] = true
		switch h := have[w.Name]; {
		case h == nil:
			e.Missing = append(e.Missing, w.Name)
		case h.DType() != w.Tensor.DType() || !slices.Equal(h.Shape(), w.Tensor.Shape()):
			e.Misshapen = append(e.Misshapen, fmt.Sprintf("%s: saved %v%v, wanted %v%v", w.Name, h.DType(), h.Shape(), w.Tensor.DType(), w.Tensor.Shape()))
		}
	}
	for _, s := range saved {
		if !wanted[s.Name] {
			e.Extra = append(e.Extra, s.Name)
		}
	}
	if len(e.Missing)+len(e.Extra)+len(e.Misshapen) > 0 {
		slices.Sort(e.Missing)
		slices.Sort(e.Extra)
		slices.Sort(e.Misshapen)
		return e
	}
	for _, w := range into {
		w.Tensor.CopyFrom(have[w.Name])
	}
	return nil
}
