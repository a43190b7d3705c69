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
