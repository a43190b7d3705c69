// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/internal/config"
)

// VisionConfig is everything that decides a run of [Vision], besides the images
// themselves. It is saved with every checkpoint. Its fields are the flags of
// `cohort train vision` and the keys of its configuration file; package
// internal/config says what the tags mean.
type VisionConfig struct {
	Data string `json:"data" usage:"digits, which are part of this program, or a {directory}: of MNIST's IDX files, of CIFAR's binary files, or with a directory of JPEG and PNG images for each class"`
	Out  string `json:"-" flag:"out" run:"here" usage:"{directory} of the run"`

	Ranks      int     `json:"ranks" run:"here" usage:"{number} of ranks, a process each"`
	Model      string  `json:"model" run:"fixed" usage:"mlp, cnn, resnet18 or resnet50"`
	Batch      int     `json:"batch" usage:"images a rank and pass"`
	Accumulate int     `json:"accumulate" usage:"{passes} of a step, whose gradients add up"`
	Epochs     float64 `json:"epochs" usage:"{times} that every image is trained on"`
	Seed       int64   `json:"seed" run:"fixed" usage:"decides the first weights, the order of the images and how they are cut"`
	DType      string  `json:"dtype" usage:"{type} that is computed in: float32 or bfloat16 (weights and checkpoints are float32 always)"`
	NaN        string  `json:"nan" usage:"what to do about a step whose loss or gradients are not finite: {stop}, or skip its update (at most 10 in a row)"`

	InitFrom string `json:"init_from,omitempty" run:"fixed" usage:"{directory} of a run whose weights this one begins with, such as one of fewer images: classes are carried over by their names"`

	Size    int    `json:"size" run:"fixed" usage:"{pixels} of a side that images are scaled to; 0 is the data's, or for files of their own 32, 64 or 224, as the model is large"`
	Augment string `json:"augment" usage:"{how} images for training are varied: none, shift, mirror (and shift), zoom (a random part, and mirror); default is what suits the data"`
	OnError string `json:"on_error" usage:"what to do about an image that cannot be read: {fail}, or skip it and take another"`
	Workers int    `json:"workers" run:"here" usage:"{goroutines} a rank that make batches; 0 makes them in the step"`

	Widths      []string `json:"widths" run:"fixed" usage:"{widths} of an mlp's layers or a cnn's stages; default is some that suit"`
	LR          float64  `json:"lr" usage:"highest learning {rate}; 0 is one that suits the model"`
	WeightDecay float64  `json:"weight_decay" usage:"weight decay of the matrices"`
	Clip        float64  `json:"clip" usage:"largest {norm} of all gradients together; 0 clips nothing"`
	Warmup      float64  `json:"warmup" usage:"{share} of the steps in which the learning rate rises"`
	LRFloor     float64  `json:"lr_floor" usage:"{share} of the learning rate that is left at the end"`

	EvalEvery int  `json:"eval_every" usage:"{steps} between evaluations; 0 evaluates at the end alone"`
	Patience  int  `json:"patience" usage:"{evaluations} without a better one until the run ends early; 0 is never"`
	Best      bool `json:"best" usage:"keep the weights with the best accuracy in OUT/best"`
	SaveEvery int  `json:"save_every" usage:"{steps} between checkpoints; 0 saves at the end"`
	Keep      int  `json:"keep" usage:"{number} of checkpoints that stay"`

	StepShare
}

// The ways in which training images are varied.
const (
	augmentNone   = "none"
	augmentShift  = "shift"
	augmentMirror = "mirror"
	augmentZoom   = "zoom"
)

var augments = []string{augmentNone, augmentShift, augmentMirror, augmentZoom}

// DefaultVision is the recipe for some ten seconds on two cores.
func DefaultVision() VisionConfig {
	return VisionConfig{
		Data: vision.DigitsName, Out: "out/vision", Ranks: 2, Model: visionCNN, Batch: 32, Accumulate: 1, Epochs: 20, Seed: 1, DType: "float32", NaN: nanStop,
		OnError: "fail", Workers: 1, Widths: []string{},
		WeightDecay: 0.05, Clip: 1, Warmup: 0.1, LRFloor: 0.01,
		EvalEvery: 100, Best: true, SaveEvery: 500, Keep: 2,
	}
}

// Validate reports the first setting that makes no sense, and what would.
func (c VisionConfig) Validate() error {
	if err := checkWholes("vision", []whole{
		{"ranks", c.Ranks, 1, 1 << 16}, {"batch", c.Batch, 1, 1 << 20}, {"accumulate", c.Accumulate, 1, 1 << 20},
		{"size", c.Size, 0, maxSide}, {"workers", c.Workers, 0, 1 << 10},
		{"eval-every", c.EvalEvery, 0, 1 << 40}, {"patience", c.Patience, 0, 1 << 40}, {"save-every", c.SaveEvery, 0, 1 << 40}, {"keep", c.Keep, 1, 1 << 20},
	}); err != nil {
		return err
	}
	if !slices.Contains(visionModels, c.Model) {
		return fmt.Errorf("train vision: --model is %q, want %s", c.Model, strings.Join(visionModels, ", "))
	}
	if c.Augment != "" && !slices.Contains(augments, c.Augment) {
		return fmt.Errorf("train vision: --augment is %q, want %s", c.Augment, strings.Join(augments, ", "))
	}
	if _, err := data.ParseOnError(c.OnError); err != nil {
		return fmt.Errorf("train vision: --on-error is %q, want fail or skip", c.OnError)
	}
	if err := checkPolicies("vision", c.DType, c.NaN); err != nil {
		return err
	}
	if err := checkNumbers("vision", []number{
		{"epochs", c.Epochs, c.Epochs > 0 && c.Epochs <= 1e6, "a number above 0, at most a million"},
		{"lr", c.LR, c.LR >= 0 && c.LR <= math.MaxFloat32, "a finite number from 0 on"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"clip", c.Clip, c.Clip >= 0, "a number from 0 on"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	}); err != nil {
		return err
	}
	if err := checkPatience("vision", c.Patience, c.EvalEvery); err != nil {
		return err
	}
	if err := checkNamed("vision", c.Out); err != nil {
		return err
	}
	if c.Data == "" {
		return fmt.Errorf("train vision: --data is empty: name a directory of images, or leave the flag out for the digits")
	}
	if len(c.Widths) > 0 && c.Model != visionMLP && c.Model != visionCNN {
		return fmt.Errorf("train vision: --widths is for mlp and cnn; a %s has its own", c.Model)
	}
	if _, err := widths("widths", c.Widths); err != nil {
		return fmt.Errorf("train vision: %w", err)
	}
	return nil
}

// size returns how many images a step takes.
func (c VisionConfig) size() stepSize { return stepSize{c.Ranks, c.Batch, c.Accumulate, c.Uneven} }

// steps returns how many steps the epochs of n images have.
func (c VisionConfig) steps(n int) int {
	return max(1, int(math.Ceil(c.Epochs*float64(n)/float64(c.size().total()))))
}

// adopt takes over what a checkpoint's run was made with. What the user gave
// stays, but must agree where it makes the run what it is: data, model, seed,
// and the images of a step.
func (c *VisionConfig) adopt(saved VisionConfig, s *config.Settings, path string) error {
	conflicts := s.Adopt(&saved, filepath.Base(path))
	size := c.size()
	if conflict := size.resume(saved.size(), saved.StepShare, &c.StepShare, s.Given(), "images"); conflict != "" {
		conflicts = append(conflicts, conflict)
	}
	c.Batch, c.Accumulate = size.batch, size.accumulate
	return conflicting("vision", c.Out, conflicts)
}
