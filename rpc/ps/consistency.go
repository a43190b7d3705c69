// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"
	"strconv"
	"strings"
)

// Mode is how far workers may be apart.
type Mode string

const (
	// ModeSynchronous: the pushes of a step are summed in the order of the workers, and
	// applied once all workers have pushed. A pull for a step sees all steps before it.
	ModeSynchronous Mode = "synchronous"
	// ModeBounded: each push is applied when it comes. A worker waits in its pull while the
	// slowest worker is more than a number of steps behind.
	ModeBounded Mode = "bounded"
	// ModeAsynchronous: each push is applied when it comes, and nobody waits.
	ModeAsynchronous Mode = "asynchronous"
)

// Consistency is what a pull sees of the pushes of other workers. The zero value is
// [Synchronous].
type Consistency struct {
	Mode Mode `json:"mode"`
	// Bound is how many steps the slowest worker may be behind, with ModeBounded.
	Bound int `json:"bound,omitempty"`
	// Batch, if not 0, is how many pushes the server collects before it applies their sum,
	// or their mean with Mean, as one update. [Client.Update] is answered then, with the new
	// rows; other pushes are acknowledged when the server has them. A worker may have several
	// pushes in a batch. It is not for ModeSynchronous.
	Batch int  `json:"batch,omitempty"`
	Mean  bool `json:"mean,omitempty"`
}

// Synchronous returns the consistency with [ModeSynchronous].
func Synchronous() Consistency { return Consistency{Mode: ModeSynchronous} }

// Bounded returns the consistency with [ModeBounded].
func Bounded(steps int) Consistency { return Consistency{Mode: ModeBounded, Bound: steps} }

// Asynchronous returns the consistency with [ModeAsynchronous].
func Asynchronous() Consistency { return Consistency{Mode: ModeAsynchronous} }

// Batched returns the same mode with batched updates of k pushes, by their mean or their
// sum.
func (c Consistency) Batched(k int, mean bool) Consistency {
	c.Batch, c.Mean = k, mean
	return c
}

// ParseConsistency reads what String writes: "synchronous", "bounded:4", "asynchronous",
// with ",batch:8" or ",batch:8:mean" behind it.
func ParseConsistency(text string) (c Consistency, err error) {
	mode, batch, batched := strings.Cut(text, ",")
	name, bound, bounded := strings.Cut(mode, ":")
	c.Mode = Mode(name)
	if bounded {
		c.Bound, err = strconv.Atoi(bound)
	}
	if batched && err == nil {
		words := strings.Split(batch, ":")
		ok := len(words) >= 2 && words[0] == "batch" && (len(words) == 2 || len(words) == 3 && (words[2] == "mean" || words[2] == "sum"))
		if ok {
			c.Batch, err = strconv.Atoi(words[1])
			c.Mean = len(words) == 3 && words[2] == "mean"
		}
		if !ok || c.Batch == 0 {
			return c, fmt.Errorf("ps: consistency %q: want batch:K, batch:K:sum or batch:K:mean behind the comma", text)
		}
	}
	if err == nil {
		err = c.validate(0)
	}
	if err == nil && bounded && c.Mode != ModeBounded {
		err = fmt.Errorf("only bounded has a number of steps")
	}
	if err != nil {
		return c, fmt.Errorf("ps: consistency %q: %w", text, err)
	}
	return c, nil
}

func (c Consistency) String() string {
	s := string(c.mode())
	if c.Mode == ModeBounded {
		s += ":" + strconv.Itoa(c.Bound)
	}
	if c.Batch > 0 {
		s += ",batch:" + strconv.Itoa(c.Batch)
		if c.Mean {
			s += ":mean"
		}
	}
	return s
}

// mode returns the mode, that of the zero value too.
func (c Consistency) mode() Mode {
	if c.Mode == "" {
		return ModeSynchronous
	}
	return c.Mode
}

// validate returns what is wrong. workers are 0 if nobody knows how many there are.
func (c Consistency) validate(workers int) error {
	switch c.mode() {
	case ModeSynchronous:
		if c.Batch != 0 {
			return fmt.Errorf("synchronous servers sum the pushes of a step already: leave the batch out, or choose asynchronous")
		}
	case ModeBounded, ModeAsynchronous:
	default:
		return fmt.Errorf("the mode %q: want synchronous, bounded:STEPS or asynchronous", c.Mode)
	}
	switch {
	case c.Bound < 0 || c.Bound > 0 && c.Mode != ModeBounded:
		return fmt.Errorf("a bound of %d steps: want 0 or more, with bounded alone", c.Bound)
	case c.Batch < 0 || c.Mean && c.Batch == 0:
		return fmt.Errorf("a batch of %d pushes: want 1 or more", c.Batch)
	case workers > 0 && c.Batch > workers:
		return fmt.Errorf("a batch of %d pushes of %d workers, each of which waits for its batch: want %d at most", c.Batch, workers, workers)
	}
	return nil
}
