// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// openSource finds the run whose weights this one begins with, if there is one, and
// takes over what its model is like. A run that goes on has them already.
func (r *visionRun) openSource(ctx context.Context, saved *SavedRun) (err error) {
	if r.cfg.InitFrom == "" {
		return nil
	}
	r.was = new(ClassifierConfig)
	if saved == nil {
		if r.pretrained, err = findPretrained(ctx, r.cfg.SaveConfig, r.cfg.InitFrom); err != nil {
			return fmt.Errorf("train vision: --init-from: %w", err)
		}
		if r.pretrained != nil {
			return r.takePretrained()
		}
	}
	if r.source, err = openSource(ctx, "vision", r.cfg.SaveConfig, r.cfg.InitFrom, saved, r.was, r.report.Notice); err != nil || saved != nil {
		return err
	}
	for name, value := range map[string]any{"model": r.was.ModelType, "size": int64(r.was.Size), "widths": listOf(r.was.Widths)} {
		if err := r.source.inherit("vision", r.settings.Field(name), value); err != nil {
			return err
		}
	}
	return nil
}

// keepsSource gives the classifier what the source's weights are made for.
func (r *visionRun) keepsSource(c *ClassifierConfig) error {
	if r.was == nil {
		return nil
	}
	if r.was.Channels != c.Channels {
		return fmt.Errorf("train vision: --init-from: the model in %s sees images of %d channels, those of %s have %d", r.cfg.InitFrom, r.was.Channels, r.training.Name(), c.Channels)
	}
	c.Mean, c.Std = r.was.Mean, r.was.Std
	c.Interpolation, c.Stem, c.Resize = r.was.Interpolation, r.was.Stem, r.was.Resize
	if c.Resize != 0 && c.Size != r.was.Size { // the same share of a photo
		c.Resize = int(float64(c.Size) * float64(r.was.Resize) / float64(r.was.Size))
	}
	return nil
}

// carry begins with the weights of the source.
func (r *visionRun) carry() error {
	fail := func(err error) error { return fmt.Errorf("train vision: --init-from: %w", err) }
	old, err := r.openOld()
	if err != nil {
		return fail(err)
	}
	heads, err := headsOf(r.classifier.Config)
	if err != nil {
		return fail(err)
	}
	classes, was := r.classifier.Config.Classes, old.Config.Classes
	if r.pretrained != nil && !r.pretrained.named {
		was = nil // numbers, which are not the names of classes
	}
	rows := places(classes, was)
	err = carry(nn.StateDict(r.classifier.Model), nn.StateDict(old.Model), func(name string) carried {
		if slices.Contains(heads, name) {
			return carried{from: name, rows: rows}
		}
		return carried{from: name}
	})
	if err != nil {
		return fail(err)
	}
	if r.pretrained != nil {
		r.report.Notice(r.pretrained.says(classes))
		return nil
	}
	r.report.Notice(r.source.says(matched("classes", classes, was)))
	return nil
}

// openOld opens the classifier that the run begins with.
func (r *visionRun) openOld() (*Classifier, error) {
	if r.pretrained != nil {
		return r.pretrained.open()
	}
	return OpenClassifier(r.source.ck)
}

// headsOf names the tensors of a classifier with a row for each class.
func headsOf(c ClassifierConfig) ([]string, error) {
	var shapes [2]map[string][]int
	for i := range shapes {
		more := c
		more.Classes = append(slices.Clone(c.Classes), make([]string, i)...)
		m, err := NewClassifier(&nn.Build{Device: tensor.Meta}, more)
		if err != nil {
			return nil, err
		}
		shapes[i] = make(map[string][]int)
		for _, s := range nn.StateDict(m.Model) {
			shapes[i][s.Name] = s.Tensor.Shape()
		}
	}
	var heads []string
	for name, shape := range shapes[0] {
		if !slices.Equal(shape, shapes[1][name]) {
			heads = append(heads, name)
		}
	}
	return heads, nil
}
