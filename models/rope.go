// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// RoPEConfig says how positions become angles: rotary position embedding (Su et
// al. 2021, arXiv 2104.09864). Channel pair i of d turns by position·Base^(-2i/d).
type RoPEConfig struct {
	Base float64 // 0 is 10,000
	// Scaling stretches positions for contexts longer than those of the first
	// training; nil for none.
	Scaling *RoPEScaling
}

// RoPEScaling is Llama 3.1's stretching: channels that turn less than LowFactor
// times over the first training's Context are slowed by Factor, those that turn
// more than HighFactor times are left alone, and those between are blended.
// With LowFactor and HighFactor 0, all are slowed: "linear" scaling.
type RoPEScaling struct {
	Factor, LowFactor, HighFactor float64
	Context                       int
}

func (r RoPEConfig) validate() error {
	if r.Base < 0 || math.IsNaN(r.Base) || math.IsInf(r.Base, 0) {
		return fmt.Errorf("models: the base of a rotary embedding is %v, want a positive number or 0 for 10,000", r.Base)
	}
	s := r.Scaling
	if s == nil {
		return nil
	}
	linear := s.LowFactor == 0 && s.HighFactor == 0
	if !(s.Factor >= 1) || !linear && (!(s.LowFactor > 0) || !(s.HighFactor > s.LowFactor) || s.Context < 1) {
		return fmt.Errorf("models: scaling of a rotary embedding by %+v: want a factor of 1 or more, 0 < low < high, and a positive context", *s)
	}
	return nil
}

// frequencies returns the angle by which each of dim/2 pairs turns from one
// position to the next.
func (r RoPEConfig) frequencies(dim int) []float64 {
	base := r.Base
	if base == 0 {
		base = 10_000
	}
	freq := tensor.RoPEFrequencies(dim, base)
	s := r.Scaling
	if s == nil {
		return freq
	}
	for i, f := range freq {
		slow := f / s.Factor
		switch turns := float64(s.Context) * f / (2 * math.Pi); {
		case s.HighFactor == 0 || turns < s.LowFactor:
			freq[i] = slow
		case turns <= s.HighFactor:
			share := (turns - s.LowFactor) / (s.HighFactor - s.LowFactor)
			freq[i] = (1-share)*slow + share*f
		}
	}
	return freq
}

// tables returns the cosine and sine of every pair, [time, dim/2] or [batch, time, dim/2], at
// the next time positions of the pass; see nn.Ctx.Positions.
func (r RoPEConfig) tables(c *nn.Ctx, time, dim int) (cos, sin *tensor.Tensor) {
	return c.RoPETable(r.frequencies(dim), time)
}
