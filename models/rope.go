// SPDX-License-Identifier: Apache-2.0

package models

import (
	"errors"
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
	// Share is how much of a head turns, its first channels: 0 is all.
	Share float64
}

// RoPEScaling stretches positions. Its zero Kind is Llama 3.1's: channels that turn less
// than LowFactor times over the first training's Context are slowed by Factor, those that
// turn more than HighFactor times are left alone, and those between are blended. With
// LowFactor and HighFactor 0, all are slowed: "linear" scaling.
type RoPEScaling struct {
	// Kind is "", "dynamic", "yarn" or "longrope".
	//
	//	dynamic   the base grows with a sequence that is longer than Context, up to where
	//	          Factor would slow the slowest channels
	//	yarn      as Llama 3.1's, with bounds that are blended between channels, not turns
	//	          (Peng et al. 2023, arXiv 2309.00071)
	//	longrope  each channel is slowed by a number of its own: one of Long where the sequence
	//	          is longer than Context, else of Short (Ding et al. 2024, arXiv 2402.13753)
	Kind                          string
	Factor, LowFactor, HighFactor float64
	Context                       int // tokens of the first training
	// Of yarn: channels that turn more than FastTurns times over Context are left alone,
	// those below SlowTurns are slowed; 0 is 32, and 1. Exact has the bounds fall within a
	// channel.
	FastTurns, SlowTurns float64
	Exact                bool
	// Short and Long, of longrope, have a number for each pair of channels.
	Short, Long []float64
	// Amplitude multiplies cosines and sines, of yarn and longrope; 0 is what their papers
	// take for Factor.
	Amplitude float64
}

func (r RoPEConfig) validate() error {
	if r.Base < 0 || math.IsNaN(r.Base) || math.IsInf(r.Base, 0) {
		return fmt.Errorf("models: the base of a rotary embedding is %v, want a positive number or 0 for 10,000", r.Base)
	}
	if !(r.Share >= 0 && r.Share <= 1) {
		return fmt.Errorf("models: the share of a head that a rotary embedding turns is %v, want one in (0, 1], or 0 for all", r.Share)
	}
	s := r.Scaling
	if s == nil {
		return nil
	}
	wrong := func(want string) error {
		return fmt.Errorf("models: scaling of a rotary embedding by %+v: want %s", *s, want)
	}
	if !(s.Amplitude >= 0) || math.IsInf(s.Amplitude, 1) {
		return wrong("an amplitude of 0 or more")
	}
	switch s.Kind {
	case "":
		linear := s.LowFactor == 0 && s.HighFactor == 0
		if !(s.Factor >= 1) || !linear && (!(s.LowFactor > 0) || !(s.HighFactor > s.LowFactor) || s.Context < 1) {
			return wrong("a factor of 1 or more, 0 < low < high, and a positive context")
		}
	case "dynamic":
		if !(s.Factor >= 1) || s.Context < 1 {
			return wrong("a factor of 1 or more and a positive context")
		}
	case "yarn":
		if !(s.Factor >= 1) || s.Context < 1 || s.FastTurns < 0 || s.SlowTurns < 0 || s.fastTurns() < s.slowTurns() {
			return wrong("a factor of 1 or more, a positive context, and 0 < slow turns ≤ fast turns")
		}
	case "longrope":
		if !(s.Factor >= 1) || s.Context < 2 || len(s.Short) != len(s.Long) || len(s.Short) == 0 {
			return wrong("a factor of 1 or more, a context of 2 or more, and as many short factors as long ones, one for each pair of channels")
		}
		for i := range s.Short {
			if !(s.Short[i] > 0) || !(s.Long[i] > 0) {
				return wrong("positive factors")
			}
		}
	default:
		return wrong("the kind dynamic, yarn, longrope or none")
	}
	return nil
}

// validateFor reports a rotation that heads of dim channels cannot have.
func (r RoPEConfig) validateFor(dim int) error {
	if err := r.validate(); err != nil {
		return err
	}
	turned := r.turned(dim)
	if turned < 2 || turned%2 != 0 {
		return fmt.Errorf("models: a rotary embedding turns %d of the %d channels of a head, want an even number from 2 on", turned, dim)
	}
	s := r.Scaling
	switch {
	case s == nil:
	case s.Kind == "longrope" && len(s.Short) != turned/2:
		return fmt.Errorf("models: a rotary embedding has %d factors for %d pairs of channels", len(s.Short), turned/2)
	case s.Kind == "dynamic" && turned < 4:
		return fmt.Errorf("models: a rotary embedding whose base is dynamic turns %d channels, want 4 or more", turned)
	}
	return nil
}

func (s *RoPEScaling) fastTurns() float64 {
	if s.FastTurns == 0 {
		return 32
	}
	return s.FastTurns
}

func (s *RoPEScaling) slowTurns() float64 {
	if s.SlowTurns == 0 {
		return 1
	}
	return s.SlowTurns
}

// turned returns how many of a head's dim channels turn.
func (r RoPEConfig) turned(dim int) int {
	if r.Share == 0 {
		return dim
	}
	return int(float64(dim) * r.Share)
}

func (r RoPEConfig) base() float64 {
	if r.Base == 0 {
		return 10_000
	}
	return r.Base
}

// byLength reports whether the angles depend on how long the sequence is.
func (r RoPEConfig) byLength() bool {
	return r.Scaling != nil && (r.Scaling.Kind == "dynamic" || r.Scaling.Kind == "longrope")
}

// frequencies returns the angle by which each of dim/2 pairs turns from one
// position to the next, in a sequence of some length. As in transformers they are float32.
func (r RoPEConfig) frequencies(dim, length int) []float64 {
	freq := tensor.RoPEFrequencies(dim, r.base())
	s := r.Scaling
	if s == nil {
		return freq
	}
	switch s.Kind {
	case "dynamic":
		if length > s.Context {
			grown := float32(s.Factor)*float32(length)/float32(s.Context) - float32(s.Factor-1)
			return tensor.RoPEFrequencies(dim, float64(float32(r.base())*float32(math.Pow(float64(grown), float64(dim)/float64(dim-2)))))
		}
	case "yarn":
		s.yarn(freq, dim, r.base())
	case "longrope":
		by := s.Short
		if length > s.Context {
			by = s.Long
		}
		for i, f := range freq {
			freq[i] = float64(float32(f / by[i]))
		}
	default:
		s.llama3(freq)
	}
	return freq
}

// llama3 slows channels by their turns over the first training's context.
func (s *RoPEScaling) llama3(freq []float64) {
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
}

// yarn slows channels by where they lie between the one that turns FastTurns times and the
// one that turns SlowTurns times.
func (s *RoPEScaling) yarn(freq []float64, dim int, base float64) {
	at := func(turns float64) float64 { // the channel, with a fraction
		return float64(dim) * math.Log(float64(s.Context)/(turns*2*math.Pi)) / (2 * math.Log(base))
	}
	low, high := at(s.fastTurns()), at(s.slowTurns())
	if !s.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i, f := range freq {
		slowed := min(1, max(0, (float64(i)-low)/(high-low)))
		freq[i] = f/s.Factor*slowed + f*(1-slowed)
	}
}

// amplitude returns what multiplies cosines and sines.
func (r RoPEConfig) amplitude() float64 {
	s := r.Scaling
	switch {
	case s == nil:
		return 1
	case s.Amplitude != 0:
		return s.Amplitude
	case s.Factor <= 1:
		return 1
	case s.Kind == "yarn":
		return 0.1*math.Log(s.Factor) + 1
	case s.Kind == "longrope":
		return math.Sqrt(1 + math.Log(s.Factor)/math.Log(float64(s.Context)))
	}
	return 1
}

// tables returns the cosine and sine of every pair that turns, [time, pairs] or [batch, time,
// pairs], at the next time positions of the pass; see nn.Ctx.Positions.
func (r RoPEConfig) tables(c *nn.Ctx, time, dim int) (cos, sin *tensor.Tensor) {
	length := 0
	if r.byLength() {
		known := false
		if length, known = c.Length(time); !known {
			c.Fail(errors.New("a rotary embedding of type dynamic or longrope depends on how long a sequence is, and ranks that share one do not know that: leave out --cp"))
		}
	}
	cos, sin = c.RoPETable(r.frequencies(r.turned(dim), length), time)
	if a := r.amplitude(); a != 1 {
		cos, sin = cos.MulScalar(a), sin.MulScalar(a)
	}
	return cos, sin
}

// turn rotates x [batch, time, heads, dim] by tables that may be of its first channels alone.
func turn(x, cos, sin *tensor.Tensor) *tensor.Tensor {
	dim, turned := x.Dim(3), 2*cos.Dim(-1)
	if turned == dim {
		return tensor.RoPE(x, cos, sin)
	}
	return tensor.Cat(3, tensor.RoPE(x.Narrow(3, 0, turned), cos, sin), x.Narrow(3, turned, dim-turned))
}
