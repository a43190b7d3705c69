// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// What a head predicts classes of.
const (
	OfSequences = "sequences" // one prediction for a text
	OfTokens    = "tokens"    // one for each of its tokens
)

// What a head's numbers mean: the problem_type of config.json.
const (
	Regression  = "regression"
	SingleLabel = "single_label_classification" // a text is of one class
	MultiLabel  = "multi_label_classification"  // it may be of several, or of none
)

// maxClasses bounds the classes of a head.
const maxClasses = 1 << 20

// Classes is what a head for classes predicts.
type Classes struct {
	Of    string   // OfSequences or OfTokens
	Names []string // of the classes, in the order of the logits
	// Problem is Regression, SingleLabel or MultiLabel. "" is transformers' rule: one
	// number is a regression, more are of a text of one class.
	Problem string
	Dropout *float64 // of what the head reads while training; nil is the model's own
}

// Kind is Problem, or what stands for it where it is empty.
func (c *Classes) Kind() string {
	switch {
	case c.Problem != "":
		return c.Problem
	case len(c.Names) == 1 && c.Of == OfSequences:
		return Regression
	}
	return SingleLabel
}

func (c *Classes) dropout(own float64) float64 {
	if c.Dropout != nil {
		return *c.Dropout
	}
	return own
}

// validate reports what makes no head. nil is none, and is right.
func (c *Classes) validate(model string) error {
	if c == nil {
		return nil
	}
	switch {
	case c.Of != OfSequences && c.Of != OfTokens:
		return fmt.Errorf("models: the head of a %s predicts classes of %q, want %s or %s", model, c.Of, OfSequences, OfTokens)
	case len(c.Names) < 1 || len(c.Names) > maxClasses:
		return fmt.Errorf("models: the head of a %s has %d classes, want 1 to %d", model, len(c.Names), maxClasses)
	case !slices.Contains([]string{"", Regression, SingleLabel, MultiLabel}, c.Problem):
		return fmt.Errorf("models: the problem_type of a %s is %q, want %s, %s or %s", model, c.Problem, Regression, SingleLabel, MultiLabel)
	}
	if d := c.dropout(0); !(d >= 0 && d < 1) {
		return fmt.Errorf("models: the head of a %s has dropout %v, want 0 up to, not including, 1", model, d)
	}
	return nil
}

// equal says whether two heads have the same classes in one order.
func (c *Classes) equal(d *Classes) bool {
	return c != nil && d != nil && c.Of == d.Of && slices.Equal(c.Names, d.Names)
}

// huggingFaceClasses is what a config.json says of classes.
type huggingFaceClasses struct {
	Names   map[string]string `json:"id2label,omitempty"`
	IDs     map[string]int    `json:"label2id,omitempty"`
	Num     *int              `json:"num_labels,omitempty"`
	Problem *string           `json:"problem_type,omitempty"`
}

// classesSettings are the keys of huggingFaceClasses.
var classesSettings = []string{"id2label", "label2id", "num_labels", "problem_type"}

// parseClasses reads what config.json says of the classes of a head. Of its keys those of
// huggingFaceClasses are read here, for other heads have no use for them.
func parseClasses(c *configuration, of string) (*Classes, error) {
	var hf huggingFaceClasses
	kept := make(map[string]json.RawMessage)
	for _, key := range classesSettings {
		if text, ok := c.keys[key]; ok {
			kept[key] = text
		}
	}
	text, err := json.Marshal(kept)
	if err == nil {
		err = json.Unmarshal(text, &hf)
	}
	if err != nil {
		return nil, fmt.Errorf("models: config.json: %w", err)
	}
	fail := func(format string, args ...any) (*Classes, error) {
		return nil, fmt.Errorf("models: config.json: %w", fmt.Errorf(format, args...))
	}
	num := 2 // as transformers takes
	switch {
	case hf.Num != nil && hf.Names == nil:
		num = *hf.Num
	case hf.Names != nil:
		if num = len(hf.Names); hf.Num != nil && *hf.Num != num {
			return fail("num_labels is %d, but id2label names %d classes", *hf.Num, num)
		}
	}
	if num < 1 || num > maxClasses {
		return fail("there are %d classes, want 1 to %d", num, maxClasses)
	}
	classes := &Classes{Of: of}
	for i := range num {
		name := fmt.Sprintf("LABEL_%d", i)
		if hf.Names != nil {
			var ok bool
			if name, ok = hf.Names[strconv.Itoa(i)]; !ok {
				return fail("id2label names %d classes, but none has the number %d", num, i)
			}
		}
		if id, ok := hf.IDs[name]; ok && hf.Names != nil && id != i && hf.Names[strconv.Itoa(id)] != name {
			return fail("id2label calls class %d %q, but label2id says that %q is class %d", i, name, name, id)
		}
		classes.Names = append(classes.Names, name)
	}
	if hf.Problem != nil {
		classes.Problem = *hf.Problem
	}
	return classes, nil
}

// describe returns what config.json says of the classes.
func (c *Classes) describe() huggingFaceClasses {
	if c == nil {
		return huggingFaceClasses{}
	}
	hf := huggingFaceClasses{Names: make(map[string]string), IDs: make(map[string]int)}
	for i, name := range c.Names {
		hf.Names[strconv.Itoa(i)] = name
		hf.IDs[name] = i
	}
	if c.Problem != "" {
		hf.Problem = &c.Problem
	}
	return hf
}
