// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// checks collects what is wrong with the options of a new module, to tell all of
// it at once.
type checks struct {
	op  string
	bad []string
}

func (c *checks) want(ok bool, format string, args ...any) {
	if !ok {
		c.bad = append(c.bad, fmt.Sprintf(format, args...))
	}
}

// positive wants a size of at least 1.
func (c *checks) positive(name string, size int) {
	c.want(size >= 1, "%s is %d: it must be at least 1", name, size)
}

// share wants a part of a whole.
func (c *checks) share(name string, p float64) {
	c.want(p >= 0 && p <= 1, "%s is %v: it must be in [0, 1]", name, p)
}

// end panics if something was wrong.
func (c *checks) end() {
	if err := c.err(); err != nil {
		panic(err)
	}
}

// err returns what was wrong, nil for nothing.
func (c *checks) err() error {
	if len(c.bad) == 0 {
		return nil
	}
	return tensor.NewError(c.op, nil, "%s", strings.Join(c.bad, "; "))
}
