// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"math"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// checks collects what is wrong with options, to tell all of it at once.
type checks struct {
	op  string
	bad []string
}

func (c *checks) want(ok bool, format string, args ...any) {
	if !ok {
		c.bad = append(c.bad, fmt.Sprintf(format, args...))
	}
}

// finite wants a number.
func (c *checks) finite(name string, v float64) {
	c.want(!math.IsNaN(v) && !math.IsInf(v, 0), "%s is %v: it must be finite", name, v)
}

// notNegative wants a number that is not negative.
func (c *checks) notNegative(name string, v float64) {
	c.want(v >= 0 && !math.IsInf(v, 0), "%s is %v: it must be finite and not negative", name, v)
}

// decay wants a number in [0, 1).
func (c *checks) decay(name string, v float64) {
	c.want(v >= 0 && v < 1, "%s is %v: it must be in [0, 1)", name, v)
}

// positive wants a count of at least 1.
func (c *checks) positive(name string, n int) {
	c.want(n >= 1, "%s is %d: it must be at least 1", name, n)
}

// end panics if something was wrong.
func (c *checks) end() {
	if len(c.bad) > 0 {
		panic(&tensor.Error{Op: c.op, Msg: strings.Join(c.bad, "; ")})
	}
}

// orDefault replaces an option that was not given.
func orDefault(v *float64, when float64) {
	if *v == 0 {
		*v = when
	}
}
