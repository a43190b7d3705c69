// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Kinds of optimizers.
const (
	SGD            = "sgd"             // p ← p - lr·g
	Adagrad        = "adagrad"         // a sum of squares for each value
	RowwiseAdagrad = "rowwise_adagrad" // one sum for a row, of the means of its squares
	Adam           = "adam"            // moves all rows at each step; of dense tables only
	LazyAdam       = "lazy_adam"       // PyTorch's SparseAdam: moves the rows of a push alone
	FTRL           = "ftrl"            // follow the regularized leader, McMahan et al. 2013
)

// Optimizer says how gradients change rows. The zero value of a number means its default:
// those of PyTorch's optimizers (LR 1e-3 of sgd and Adam, 1e-2 of Adagrad; Beta1 0.9, Beta2
// 0.999; Eps 1e-8 of Adam, 1e-10 of Adagrad) and of TensorFlow's FTRL (LR 1e-3, Initial 0.1).
// A number that the kind does not have is refused.
type Optimizer struct {
	Kind    string  `json:"kind,omitempty"` // "" means sgd
	LR      float64 `json:"lr,omitempty"`
	LRDecay float64 `json:"lr_decay,omitempty"` // of Adagrad: step t, from 0, has LR/(1 + t·LRDecay)
	Eps     float64 `json:"eps,omitempty"`
	Beta1   float64 `json:"beta1,omitempty"`
	Beta2   float64 `json:"beta2,omitempty"`
	Initial float64 `json:"initial,omitempty"` // what sums of squares begin with
	// Beta, L1 and L2 are those of FTRL in McMahan's paper: a value is 0 while |z| ≤ L1,
	// and else -(z - sign(z)·L1) / ((Beta + √n)/LR + L2). TensorFlow's l2 is half of L2.
	Beta float64 `json:"beta,omitempty"`
	L1   float64 `json:"l1,omitempty"`
	L2   float64 `json:"l2,omitempty"`
}

// optimizerKind says what a kind has. state is the number of float32 a row of a width.
type optimizerKind struct {
	state   func(width int) int
	numbers string // the JSON names of its numbers beside lr
	lr, eps float64
	initial float64
}

func optimizerKinds(kind string) (optimizerKind, bool) {
	none := func(int) int { return 0 }
	once := func(w int) int { return w }
	twice := func(w int) int { return 2 * w }
	switch kind {
	case "", SGD:
		return optimizerKind{state: none, lr: 1e-3}, true
	case Adagrad:
		return optimizerKind{state: once, numbers: "lr_decay eps initial", lr: 1e-2, eps: 1e-10}, true
	case RowwiseAdagrad:
		return optimizerKind{state: func(int) int { return 1 }, numbers: "lr_decay eps initial", lr: 1e-2, eps: 1e-10}, true
	case Adam, LazyAdam:
		return optimizerKind{state: twice, numbers: "eps beta1 beta2", lr: 1e-3, eps: 1e-8}, true
	case FTRL:
		return optimizerKind{state: twice, numbers: "initial beta l1 l2", lr: 1e-3, initial: 0.1}, true
	}
	return optimizerKind{}, false
}

func (o Optimizer) validate(dense bool) string {
	k, known := optimizerKinds(o.Kind)
	if !known {
		return fmt.Sprintf("optimizer.kind is %q: want sgd, adagrad, rowwise_adagrad, adam, lazy_adam or ftrl", o.Kind)
	}
	if o.Kind == Adam && !dense {
		return "optimizer.kind is adam, which moves every row at each step, and the table is not dense: use lazy_adam, or set rows"
	}
	for _, n := range []struct {
		name     string
		value    float64
		negative bool
	}{
		{"lr", o.LR, true}, {"lr_decay", o.LRDecay, false}, {"eps", o.Eps, false}, {"beta1", o.Beta1, false},
		{"beta2", o.Beta2, false}, {"initial", o.Initial, false}, {"beta", o.Beta, false}, {"l1", o.L1, false}, {"l2", o.L2, false},
	} {
		switch {
		case n.value == 0:
		case n.name != "lr" && !slices.Contains(strings.Fields(k.numbers), n.name):
			return fmt.Sprintf("optimizer.%s is %v, which %s does not have: leave it out", n.name, n.value, o.withDefaults().Kind)
		case !(math.Abs(n.value) <= math.MaxFloat32) || n.value < 0 && !(n.negative && o.withDefaults().Kind == SGD):
			return fmt.Sprintf("optimizer.%s is %v: want a finite number that is not negative", n.name, n.value)
		case (n.name == "beta1" || n.name == "beta2") && n.value >= 1:
			return fmt.Sprintf("optimizer.%s is %v: want less than 1", n.name, n.value)
		}
	}
	return ""
}

func (o Optimizer) withDefaults() Optimizer {
	if o.Kind == "" {
		o.Kind = SGD
	}
	k, _ := optimizerKinds(o.Kind)
	orDefault(&o.LR, k.lr)
	orDefault(&o.Eps, k.eps)
	orDefault(&o.Initial, k.initial)
	if strings.Contains(k.numbers, "beta1") {
		orDefault(&o.Beta1, 0.9)
		orDefault(&o.Beta2, 0.999)
	}
	return o
}

func orDefault(x *float64, def float64) {
	if *x == 0 {
		*x = def
	}
}

// stateLen returns the number of float32 of a row's state.
func (o Optimizer) stateLen(width int) int {
	k, _ := optimizerKinds(o.Kind)
	return k.state(width)
}

// firstState writes what a row's state begins with.
func (o Optimizer) firstState(state []float32, width int) {
	clear(state)
	if o.Initial != 0 { // n of FTRL and the sums of Adagrad come first
		n := min(width, len(state))
		for i := range state[:n] {
			state[i] = float32(o.Initial)
		}
	}
}
