// SPDX-License-Identifier: Apache-2.0

package native

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Explainer tells how the collectives of a group are served and why, once for each
// operation and size class. A size class is the sizes up to the same power of two. A nil
// Explainer tells nothing.
type Explainer struct {
	group string
	write func(line string)

	mu   sync.Mutex
	told map[sizeClass]bool
}

type sizeClass struct {
	op  operation.Op
	log int
}

// NewExplainer returns one that writes lines about a group.
func NewExplainer(group string, write func(line string)) *Explainer {
	return &Explainer{group: group, write: write, told: map[sizeClass]bool{}}
}

// say tells how a call is served, if it is the first of its class.
func (e *Explainer) say(c *operation.Call, why string) {
	if e == nil {
		return
	}
	bytes := c.Count * c.DType.Size()
	class := sizeClass{c.Op, bits.Len(uint(bytes))}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.told[class] {
		e.told[class] = true
		e.write(fmt.Sprintf("dist: group %q: %v, %d bytes: %s", e.group, c, bytes, why))
	}
}
