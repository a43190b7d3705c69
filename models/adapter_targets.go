// SPDX-License-Identifier: Apache-2.0

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/nn"
)

// adapterTargets are modules that an adapter_config.json chooses: by names, of
// which the last parts do, or by a pattern for the whole name.
type adapterTargets struct {
	Names   []string
	Pattern string

	whole *regexp.Regexp
}

func (t adapterTargets) none() bool { return t.Names == nil && t.Pattern == "" }

// MarshalJSON writes the names, or the pattern.
func (t adapterTargets) MarshalJSON() ([]byte, error) {
	if t.Pattern != "" {
		return json.Marshal(t.Pattern)
	}
	return json.Marshal(t.Names)
}

// UnmarshalJSON reads names, a pattern or null.
func (t *adapterTargets) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &t.Pattern)
	}
	return json.Unmarshal(text, &t.Names)
}

// match says whether the module of a name is chosen, and whether its whole name
// stands in the list.
func (t adapterTargets) match(name string) (chosen, whole bool) {
	if t.whole != nil {
		return t.whole.MatchString(name), true
	}
	if slices.Contains(t.Names, name) {
		return true, true
	}
	return slices.ContainsFunc(t.Names, func(n string) bool { return strings.HasSuffix(name, "."+n) }), false
}

// oneOrMore is a list for which a file may have a single value.
type oneOrMore[T any] []T

// UnmarshalJSON reads a list, a value or null.
func (l *oneOrMore[T]) UnmarshalJSON(text []byte) error {
	if text[0] == '[' || text[0] == 'n' {
		return json.Unmarshal(text, (*[]T)(l))
	}
	var one T
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	*l = []T{one}
	return nil
}

// sizePattern are ranks or alphas of modules by patterns, the first of which
// that fits holds.
type sizePattern []sizeOf

type sizeOf struct {
	pattern string
	value   float64
	ending  *regexp.Regexp // a name that ends in what the pattern fits
}

// MarshalJSON writes an object.
func (p sizePattern) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, s := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(s.pattern)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%s", name, strconv.FormatFloat(s.value, 'g', -1, 64))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// maxPatterns bounds the patterns of ranks or of alphas, each of which is tried at
// each module.
const maxPatterns = 1 << 13

// UnmarshalJSON reads an object in its order, or null.
func (p *sizePattern) UnmarshalJSON(text []byte) error {
	*p = nil
	var values map[string]*float64
	if err := json.Unmarshal(text, &values); err != nil || values == nil {
		return err
	}
	if len(values) > maxPatterns {
		return fmt.Errorf("%d patterns, more than the %d allowed", len(values), maxPatterns)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if err := d.Decode(new(json.RawMessage)); err != nil {
			return err
		}
		name := key.(string)
		if v := values[name]; v == nil {
			return fmt.Errorf("the pattern %q has no number", name)
		} else if !seen[name] {
			seen[name] = true
			*p = append(*p, sizeOf{pattern: name, value: *v})
		}
	}
	return nil
}

// find returns the value of the first pattern that fits the end of a name, as
// PEFT matches them.
func (p sizePattern) find(name string, otherwise float64) float64 {
	for _, s := range p {
		if s.ending.MatchString(name) {
			return s.value
		}
	}
	return otherwise
}

// compilePattern returns what matches names that a pattern of Python's fits as a
// whole.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	const most = 1 << 14
	if len(pattern) > most {
		return nil, fmt.Errorf("a pattern of %d bytes: more than the %d allowed", len(pattern), most)
	}
	re, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w: give whole names instead", pattern, err)
	}
	return re, nil
}

// allLinear stands for every projection but the output layer.
const allLinear = "all-linear"

// compile makes the patterns ready, and reports those that cannot be had.
func (a *adapterConfig) compile() error {
	for key, t := range map[string]*adapterTargets{"target_modules": &a.Targets, "exclude_modules": &a.Excluded} {
		if t.Pattern == "" || key == "target_modules" && strings.EqualFold(t.Pattern, allLinear) {
			continue
		}
		re, err := compilePattern(t.Pattern)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		t.whole = re
	}
	for _, s := range a.Ranks {
		if s.value != float64(int(s.value)) {
			return fmt.Errorf("rank_pattern: the rank %v of %q is no whole number", s.value, s.pattern)
		}
	}
	for _, s := range a.Alphas {
		if s.value == 0 {
			return fmt.Errorf("alpha_pattern: the alpha of %q is 0, so that it adds nothing", s.pattern)
		}
	}
	for key, p := range map[string]sizePattern{"rank_pattern": a.Ranks, "alpha_pattern": a.Alphas} {
		for i, s := range p {
			re, err := compilePattern(`(?:.*\.)?(?:` + s.pattern + `)`)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			p[i].ending = re
		}
	}
	layers := []string{`.*?\.[^.]*`}
	if len(a.LayersPattern) > 0 {
		layers = nil
		for _, p := range a.LayersPattern {
			layers = append(layers, `(?:^|.*?\.)`+p)
		}
	}
	for _, p := range layers {
		re, err := regexp.Compile(`\A` + p + `\.(\d+)\.`)
		if err != nil {
			return fmt.Errorf("layers_pattern: %w: give whole names instead", err)
		}
		a.layers = append(a.layers, re)
	}
	if a.Targets.Pattern != "" && len(a.Layers) > 0 {
		return errors.New("it has layers_to_transform beside a pattern of target_modules: PEFT takes one of them")
	}
	return nil
}

// targeted says whether PEFT would adapt the module of a name.
func (a adapterConfig) targeted(name string) bool {
	if excluded, _ := a.Excluded.match(name); excluded {
		return false
	}
	if strings.EqualFold(a.Targets.Pattern, allLinear) {
		return name != "lm_head"
	}
	if a.Targets.none() { // of a model whose targets nobody knows
		return true
	}
	chosen, whole := a.Targets.match(name)
	if !chosen || whole || len(a.Layers) == 0 {
		return chosen
	}
	for _, re := range a.layers {
		if found := re.FindStringSubmatch(name); found != nil {
			layer, err := strconv.Atoi(found[len(found)-1])
			return err == nil && slices.Contains(a.Layers, layer)
		}
	}
	return false
}

// sizeFor returns the rank and alpha of the module of a name.
func (a adapterConfig) sizeFor(name string) nn.LoRASize {
	return nn.LoRASize{Rank: int(a.Ranks.find(name, float64(a.Rank))), Alpha: a.Alphas.find(name, a.Alpha)}
}

// defaultTargets are those that PEFT takes where a configuration has none.
func defaultTargets(m Pretrained) []string {
	if m, ok := m.(interface{ LoRATargets() []string }); ok {
		return m.LoRATargets()
	}
	return nil
}
