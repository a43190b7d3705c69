// SPDX-License-Identifier: Apache-2.0

package models

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// huggingFaceRoPE is how a config.json describes a rotation: rope_scaling, or since version 5
// of transformers rope_parameters, with the base among them.
type huggingFaceRoPE struct {
	Type         string    `json:"rope_type,omitempty"`
	OldType      string    `json:"type,omitempty"`
	Base         *float64  `json:"rope_theta,omitempty"`
	Factor       float64   `json:"factor,omitempty"`
	LowFactor    float64   `json:"low_freq_factor,omitempty"`
	HighFactor   float64   `json:"high_freq_factor,omitempty"`
	Context      int       `json:"original_max_position_embeddings,omitempty"`
	Amplitude    *float64  `json:"attention_factor,omitempty"`
	Fast         float64   `json:"beta_fast,omitempty"`
	Slow         float64   `json:"beta_slow,omitempty"`
	Magnitude    float64   `json:"mscale,omitempty"`
	AllMagnitude float64   `json:"mscale_all_dim,omitempty"`
	Truncate     *bool     `json:"truncate,omitempty"`
	Short        []float64 `json:"short_factor,omitempty"`
	Long         []float64 `json:"long_factor,omitempty"`

	keys    int // that the object has
	refused []string
}

// ropeSettings are the keys that are read. As in transformers, those of another type are left alone.
var ropeSettings = []string{
	"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor",
	"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor",
}

// UnmarshalJSON reads an object and keeps the names of what is not honoured.
func (p *huggingFaceRoPE) UnmarshalJSON(text []byte) error {
	type plain huggingFaceRoPE // without this method
	c, err := readConfig(text)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		var v any
		if err := json.Unmarshal(c.keys[key], &v); err != nil {
			return err
		}
		if !slices.Contains(ropeSettings, key) && !neutral(v) && !(key == "partial_rotary_factor" && v == 1.0) {
			p.refused = append(p.refused, key)
		}
	}
	if v, ok := c.keys["rope_theta"]; ok && string(v) == "null" {
		p.refused = append(p.refused, "rope_theta null")
	}
	p.keys = len(c.keys)
	maps.DeleteFunc(c.keys, func(key string, _ json.RawMessage) bool { return !slices.Contains(ropeSettings, key) })
	if text, err = json.Marshal(c.keys); err != nil {
		return err
	}
	return json.Unmarshal(text, (*plain)(p))
}

// config returns the rotation that an object under a key describes. base stands beside it, as
// does the length of the first training, 0 if it does not; context is how many tokens the
// model takes.
func (p *huggingFaceRoPE) config(key string, base float64, first, context int) (RoPEConfig, error) {
	if base <= 0 {
		return RoPEConfig{}, fmt.Errorf("models: config.json wants rope_theta %v, which must be positive", base)
	}
	r := RoPEConfig{Base: base}
	if p == nil {
		return r, nil
	}
	kind := cmp.Or(p.Type, p.OldType)
	if len(p.refused) > 0 {
		return RoPEConfig{}, fmt.Errorf("models: config.json has settings in %s, of type %q, that are not supported: %s", key, kind, strings.Join(p.refused, ", "))
	}
	if p.Base != nil {
		if r.Base = *p.Base; r.Base <= 0 {
			return RoPEConfig{}, fmt.Errorf("models: config.json wants %s with rope_theta %v, which must be positive", key, r.Base)
		}
	}
	// A length of the first training beside goes before one inside.
	first = cmp.Or(first, p.Context, context)
	switch kind {
	case "default", "":
	case "linear":
		r.Scaling = &RoPEScaling{Factor: p.Factor}
	case "dynamic":
		r.Scaling = &RoPEScaling{Kind: kind, Factor: p.Factor, Context: context}
	case "llama3":
		if p.LowFactor == 0 && p.HighFactor == 0 { // which stands for linear scaling
			return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type llama3 without low_freq_factor and high_freq_factor")
		}
		r.Scaling = &RoPEScaling{Factor: p.Factor, LowFactor: p.LowFactor, HighFactor: p.HighFactor, Context: first}
	case "yarn", "longrope":
		s := &RoPEScaling{Kind: kind, Factor: p.Factor, Context: first}
		if s.Factor == 0 && first > 0 && kind == "longrope" {
			s.Factor = max(1, float64(context)/float64(first))
		}
		if p.Amplitude != nil {
			if s.Amplitude = *p.Amplitude; s.Amplitude <= 0 {
				return RoPEConfig{}, fmt.Errorf("models: config.json wants %s with attention_factor %v, which must be positive", key, s.Amplitude)
			}
		}
		if kind == "longrope" {
			s.Short, s.Long = p.Short, p.Long
		} else {
			p.yarn(s)
		}
		r.Scaling = s
	default:
		return RoPEConfig{}, fmt.Errorf("models: config.json wants rotary embeddings of type %q in %s; there are default, linear, dynamic, llama3, yarn and longrope", kind, key)
	}
	return r, nil
}

// yarn fills in what only yarn has.
func (p *huggingFaceRoPE) yarn(s *RoPEScaling) {
	s.FastTurns, s.SlowTurns = p.Fast, p.Slow
	s.Exact = p.Truncate != nil && !*p.Truncate
	if s.Amplitude == 0 && p.Magnitude != 0 && p.AllMagnitude != 0 { // of DeepSeek
		one := RoPEConfig{Scaling: s}.amplitude() - 1
		s.Amplitude = (p.Magnitude*one + 1) / (p.AllMagnitude*one + 1)
	}
}

// huggingFaceScaling returns the rope_scaling of a rotation, nil for none.
func huggingFaceScaling(r RoPEConfig) *huggingFaceRoPE {
	s := r.Scaling
	if s == nil {
		return nil
	}
	p := &huggingFaceRoPE{Type: s.Kind, Factor: s.Factor, LowFactor: s.LowFactor, HighFactor: s.HighFactor, Context: s.Context}
	switch {
	case s.Kind == "dynamic": // of which the context is the model's
		p.Context = 0
	case s.Kind == "" && s.HighFactor == 0:
		p = &huggingFaceRoPE{Type: "linear", Factor: s.Factor}
	case s.Kind == "":
		p.Type = "llama3"
	}
	p.Fast, p.Slow, p.Short, p.Long = s.FastTurns, s.SlowTurns, s.Short, s.Long
	if s.Exact {
		p.Truncate = new(bool)
	}
	if s.Amplitude != 0 {
		p.Amplitude = &s.Amplitude
	}
	return p
}
