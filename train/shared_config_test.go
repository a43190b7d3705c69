// SPDX-License-Identifier: Apache-2.0

package train

import (
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/config"
)

// recipeSettings are those of the recipes, with what checks them.
func recipeSettings() map[string]func() (s *config.Settings, validate func() error) {
	return map[string]func() (*config.Settings, func() error){
		"lm": func() (*config.Settings, func() error) {
			c := DefaultLM()
			return config.New(&c), func() error { return c.Validate() }
		},
		"rec": func() (*config.Settings, func() error) {
			c := DefaultRec()
			return config.New(&c), func() error { return c.Validate() }
		},
		"vision": func() (*config.Settings, func() error) {
			c := DefaultVision()
			return config.New(&c), func() error { return c.Validate() }
		},
	}
}

// TestSharedConfig: every recipe has every shared setting, and the defaults pass
// the checks.
func TestSharedConfig(t *testing.T) {
	shared := config.New(&SharedConfig{}).Names()
	for task, settings := range recipeSettings() {
		s, validate := settings()
		if err := validate(); err != nil {
			t.Errorf("%s: the defaults: %v", task, err)
		}
		for _, name := range shared {
			if s.Field(name) == nil {
				t.Errorf("%s has no --%s", task, name)
			}
		}
		for _, f := range s.Fields() {
			if f.Group == "" {
				t.Errorf("%s: --%s has no group", task, f.Name)
			}
		}
	}
}

// TestSettingsValues: the values that help names are those that the checks take.
func TestSettingsValues(t *testing.T) {
	for task, settings := range recipeSettings() {
		s, _ := settings()
		for _, declared := range s.Fields() {
			for _, value := range slices.Concat(declared.Values, []string{"nonsense"}) {
				if declared.Values == nil || value == "DIR" || slices.Contains(declared.Values, "DIR") {
					continue
				}
				s, validate := settings()
				if err := s.Field(declared.Name).SetText(value, config.Flag); err != nil {
					t.Fatal(err)
				}
				err := validate()
				if err != nil && strings.Contains(err.Error(), "is for records") { // the value is known
					err = nil
				}
				if known := value != "nonsense"; known != (err == nil) || !known && !strings.Contains(err.Error(), "--"+declared.Name+` is "nonsense", want `) {
					t.Errorf("train %s --%s %s: %v", task, declared.Name, value, err)
				}
			}
		}
	}
}

// TestEvaluatesAtTheEnd: 0 steps between evaluations and between checkpoints is
// one of each, at the end; and the best weights are kept only if they are asked
// for.
func TestEvaluatesAtTheEnd(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.EvalEvery, c.SaveEvery, c.Best = 0, 0, false
	l, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := l.evaluations[c.Steps]; !ok || len(l.evaluations) != 1 || !slices.Equal(l.saved, []int{c.Steps}) || l.finish.Best != nil {
		t.Errorf("evaluations %v, checkpoints %v, best %v", l.evaluations, l.saved, l.finish.Best)
	}
}
